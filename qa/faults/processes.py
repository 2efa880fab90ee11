"""Faults of whole processes: closed streams, signals, kills, damaged kernels, lack of memory.

A process that runs the softmax example prints ``ready`` when its main function begins; then the
fault is injected. Its output file must be whole or absent, and the next run must succeed.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from qa.faults.damages import CHANGES, PLACES, damaged
from qa.faults.files import Workshop
from qa.faults.outcome import MODULES, Command, Ended, Fault

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240
"""Time limit of a process, which may compile all kernels; a fault runs several of them."""
FAULT_SECONDS = 5 * SECONDS
_READY = "import sys, {module} as m; sys.argv = {argv}; print('ready', flush=True); m.process()"
_MOST_KILLS = 4


def _environment(cache: Path | None) -> dict[str, str]:
    more = {} if cache is None else {"SPYRE_CACHE_DIR": str(cache)}
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def _ended(
    command: Command, cache: Path | None = None, limit: Callable[[], None] | None = None
) -> Ended:
    """Run a command in a new process."""
    words = [sys.executable, "-m", MODULES[command[0]], *command[1:]]
    done = subprocess.run(
        words, capture_output=True, text=True, errors="replace", env=_environment(cache), cwd=ROOT,
        timeout=SECONDS, preexec_fn=limit, check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


def _run(shop: Workshop) -> Command:
    return ("spyre-run", shop.at("bundle"), "-q", "-o", shop.at("y.npy"), "--exact")


# --- streams ----------------------------------------------------------------------------------

REDIRECTIONS = {
    ">&-": 2, "2>&-": 0, ">&- 2>&-": 2, ">/dev/full": 2, ">/dev/full 2>/dev/full": 2,
    "2>/dev/full": 0, "<&-": 0, "| head -c 20": 2, "2>&1 | true": 2, ">&- <&- 2>&-": 2,
}  # fmt: skip
"""Redirections of a command that prints, and the exit code that each must cause."""


def stream_faults(shop: Workshop) -> Iterator[Fault]:
    """Yield every redirection of commands that print much, little, or an error."""
    bundle = shop.at("bundle")
    commands: dict[str, tuple[Command, bool]] = {
        "--explain": (("spyre-run", bundle, "--explain"), True),
        "--json": (("spyre-run", bundle, "--json"), True),
        "--commands": (("spyre-run", bundle, "--commands"), True),
        "--help": (("spyre-run", "--help"), True),
        "-q": (("spyre-run", bundle, "-q"), False),
        "an error": (("spyre-run", "/nonexistent"), True),
        "compile": (("spyre-compile", "--bundle", "-d", bundle), True),
    }
    for name, (command, prints) in commands.items():
        for redirection, code in REDIRECTIONS.items():
            wanted = 2 if name == "an error" else code if prints else 0
            # a little text may be written before the reader has gone
            codes = {wanted} if "|" not in redirection else {wanted, 0}
            yield Fault(
                f"{name} {redirection}",
                partial(_redirect, command, redirection, codes),
                FAULT_SECONDS,
            )


def _redirect(command: Command, redirection: str, codes: set[int], rng: random.Random) -> str:
    words = " ".join((sys.executable, "-m", MODULES[command[0]], *command[1:]))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words} {redirection}"], capture_output=True, text=True,
        env=_environment(None), cwd=ROOT, timeout=SECONDS, check=False,
    )  # fmt: skip
    if any(word in done.stderr + done.stdout for word in ("Traceback", "Exception ignored")):
        return done.stderr + done.stdout
    return "" if done.returncode in codes else f"exit code {done.returncode}: {done.stderr}"


# --- signals ----------------------------------------------------------------------------------


def signal_faults(shop: Workshop) -> Iterator[Fault]:
    """Yield signals at a random moment of a run that writes a file."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP):
        for name in ("y.npy", "y.pt", "dump", "t.json"):
            text = f"{number.name} while {name} is written"
            yield Fault(text, partial(_signal, shop, number, name), FAULT_SECONDS)


def _signal(shop: Workshop, number: signal.Signals, name: str, rng: random.Random) -> str:
    place = shop.root / "signals"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    target = place / name
    option = {"dump": "--dump", "t.json": "--trace"}.get(name, "--save-output")
    writes: Command = (*_run(shop), option, str(target))
    started = _started(writes, None)
    # up to twice the run's time, so that some runs end before the signal
    time.sleep(rng.random() * 1.2)
    started.send_signal(number)
    out, err = started.communicate(timeout=SECONDS)
    allowed = {0, 130 if number is signal.SIGINT else -number}
    if started.returncode not in allowed or "Traceback" in err:
        return f"exit code {started.returncode}: {out[-500:]} {err[-2000:]}"
    left = os.listdir(place)
    if number is signal.SIGINT and left not in ([], [name]):
        return f"left behind: {left}"
    again = _ended(writes)
    return "" if again.code == 0 else f"not right afterwards: {again}"


def _started(command: Command, cache: Path | None) -> subprocess.Popen[str]:
    """Start a command in a new process and wait until its main function begins."""
    argv = [command[0], *command[1:]]
    code = _READY.format(module=MODULES[command[0]], argv=argv)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=_environment(cache), cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


# --- caches -----------------------------------------------------------------------------------


def cold_faults(shop: Workshop) -> Iterator[Fault]:
    """Yield series of killed cold runs with one cache, which the last run uses too."""
    for kills in range(1, _MOST_KILLS + 1):
        yield Fault(f"{kills} cold runs killed", partial(_kill_cold, shop, kills), FAULT_SECONDS)


def _kill_cold(shop: Workshop, kills: int, rng: random.Random) -> str:
    cache = shop.root / "cold"
    shutil.rmtree(cache, ignore_errors=True)
    for _ in range(kills):
        process = _started(_run(shop), cache)
        time.sleep(rng.random() * 8)
        process.kill()
        process.communicate()
    return _right(shop, cache) or _right(shop, cache, "compiled")


def kernel_faults(shop: Workshop) -> Iterator[Fault]:
    """Yield damages of kernels, plans and digests in a filled cache."""
    warm = shop.root / "warm"
    if not warm.exists():
        assert _ended(_run(shop), warm).code == 0
    for damage in (*CHANGES, *PLACES):
        yield Fault(
            f"a file of the cache, {damage}", partial(_damage_cache, shop, damage), FAULT_SECONDS
        )


def _damage_cache(shop: Workshop, damage: str, rng: random.Random) -> str:
    # One directory each: a process in the background may still write to the one before.
    with TemporaryDirectory(dir=shop.root, ignore_cleanup_errors=True) as directory:
        cache = Path(shutil.copytree(shop.root / "warm", directory, dirs_exist_ok=True))
        file = rng.choice(sorted(p for p in cache.rglob("*") if p.is_file()))
        with damaged(file, damage, rng):
            return _right(shop, cache)


def _right(shop: Workshop, cache: Path, unsaid: str = "Traceback") -> str:
    """Run with ``cache``; return "" if it succeeds without printing ``unsaid``, else the output."""
    done = _ended(_run(shop), cache)
    wrong = done.code or "Traceback" in done.err or unsaid in done.err
    return f"not right: {done}" if wrong else ""


def full_cache_faults(shop: Workshop) -> Iterator[Fault]:
    """Yield cold caches that can keep no file, or only small ones: only a warning is allowed."""
    for most_bytes in (0, 4096):
        name = f"a cache of files up to {most_bytes} bytes"
        yield Fault(name, partial(_full_cache, shop, most_bytes), FAULT_SECONDS)


def _full_cache(shop: Workshop, most_bytes: int, rng: random.Random) -> str:
    cache = shop.root / "full"
    shutil.rmtree(cache, ignore_errors=True)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    done = _ended(_run(shop), cache, limit)
    if done.code or "Traceback" in done.err or "cannot be kept" not in done.err:
        return f"not right: {done}"
    return _right(shop, cache, "damaged")


# --- memory -----------------------------------------------------------------------------------

CARD_BYTES = 128 << 30


def memory_faults(shop: Workshop) -> Iterator[Fault]:
    """Yield limits of address space, from half of the card's memory to 2 GB above it.

    At 300 MiB the libraries themselves cannot be loaded.
    """
    for spare in (-CARD_BYTES // 2, 0, 500 << 20, 700 << 20, 900 << 20, 1200 << 20, 2000 << 20):
        for command in (_run(shop), ("spyre-run", shop.at("case"), "-q", "--verify")):
            name = f"{spare >> 20} MiB beside the card: {' '.join(command[2:4])}"
            yield Fault(name, partial(_little_memory, command, spare), FAULT_SECONDS)


def _little_memory(command: Command, spare: int, rng: random.Random) -> str:
    most = CARD_BYTES + spare + rng.randrange(100 << 20)
    done = _ended(command, limit=partial(resource.setrlimit, resource.RLIMIT_AS, (most, most)))
    return done.untruth
