"""``python -m qa.frontend.ratio --torch-spyre PATH``: CPU seconds of torch-spyre's calls and ours.

Test files of a checkout run on the simulator, each in a separate process, and every copy, kernel
load and launch is recorded with its CPU seconds. Then this package's device repeats them in the
same order, again in one process per file: tensors of the same sizes, strides and dtypes, in the
same layouts where this device accepts them, and the programs that torch-spyre compiled, loaded and
launched by the runtime. Seconds are CPU time of the whole process, and each launch is waited for.
Prints the ratio of the two. Exit code 2 if nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from qa.frontend.plugin.spyre_recording import SETTINGS
from spyre.errors import LaunchError

PLUGIN = Path(__file__).parent / "plugin"
ROOT = Path(__file__).parents[2]
Call = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.frontend.ratio")
    add = parser.add_argument
    add("--torch-spyre", metavar="PATH", default=os.environ.get("SPYRE_TORCH_SPYRE", ""))
    add("--files", nargs="*", metavar="PATTERN", default=["tests/tensor/test_*.py"])
    add("--replay", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.replay:
        print(json.dumps(replayed(json.loads(Path(options.replay).read_text()))))
        return 0
    checkout = Path(options.torch_spyre).resolve()
    theirs, ours, counts = Counter[str](), Counter[str](), Counter[str]()
    files = sorted({file for pattern in options.files for file in checkout.glob(pattern)})
    for file in files:
        with tempfile.TemporaryDirectory() as folder:
            calls = _recorded(checkout, file, Path(folder))
            counts.update(call["kind"] for call in calls)
            _add(theirs, calls)
            _add(ours, _replayed(Path(folder)) if calls else [])
    for kind, count in counts.items():
        _print(f"{count} times {kind}", theirs[kind], ours[kind])
    if not counts:
        print(f"no copies and no launches in {len(files)} files of {checkout}", file=sys.stderr)
        return 2
    _print("all", theirs.total(), ours.total())
    return 0


def _add(total: Counter[str], calls: Sequence[Call]) -> None:
    for call in calls:
        total[call["kind"]] += call["seconds"]


def _print(what: str, theirs: float, ours: float) -> None:
    print(f"{what}: torch-spyre {theirs:.3f} s, own device {ours:.3f} s: {theirs / ours:.2f} x")


def _recorded(checkout: Path, file: Path, folder: Path) -> list[Call]:
    settings = {"folder": str(folder), "results": os.devnull, "sample": [0, 1], "seconds": 300}
    plugins = ("-p", "spyre_timing", "-p", "spyre_recording", "-p", "no:cacheprovider")
    _run(
        [sys.executable, "-m", "pytest", "-q", "--tb=no", *plugins, str(file)],
        checkout,
        SPYRE_FRONTEND="torch-spyre",
        PYTHONPATH=os.pathsep.join([str(PLUGIN), os.environ.get("PYTHONPATH", "")]),
        TORCHINDUCTOR_CACHE_DIR=str(folder / "compiled"),
        TORCHINDUCTOR_COMPILE_THREADS="1",
        **{SETTINGS: json.dumps(settings)},
    )
    calls: list[Call] = json.loads((folder / "calls.json").read_text())
    return calls


def _replayed(folder: Path) -> list[Call]:
    command = [sys.executable, "-m", "qa.frontend.ratio", "--replay", str(folder / "calls.json")]
    printed = _run(command, ROOT, SPYRE_FRONTEND="spyre")
    calls: list[Call] = json.loads(printed.splitlines()[-1])
    return calls


def _run(command: Sequence[str], folder: Path, **environment: str) -> str:
    given = {**os.environ, "SPYRE_LAUNCH_BLOCKING": "1", **environment}
    done = subprocess.run(command, cwd=folder, env=given, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):  # of pytest, 1: a test failed
        raise RuntimeError(f"{command[-1]} ended with {done.returncode}: {done.stdout[-500:]}")
    return done.stdout


# --- on the own device ----------------------------------------------------------------------------


def replayed(calls: Sequence[Call]) -> list[Call]:
    """Repeat the calls on the device of this process and return them with their CPU seconds."""
    import torch

    torch.empty(1, device="spyre")  # torch-spyre too had one before the first call
    loaded: dict[str, Any] = {}
    return [
        {"kind": call["kind"], "seconds": _REPLAYS[call["kind"]](call, loaded)} for call in calls
    ]


def _copy(call: Call, _: Any) -> float:

    source, target = (_tensor(**each) for each in call["tensors"])
    if source.device.type == "cpu":
        source.zero_()
    begin = time.process_time()
    target.copy_(source)
    return time.process_time() - begin


def _tensor(
    device: str, size: list[int], stride: list[int], dtype: str, layout: list[Any] | None
) -> Any:
    import torch

    from spyre.layout import SpyreTensorLayout, transfer_geometry

    options = {"dtype": getattr(torch, dtype), "device": device}
    if layout is not None:
        chosen = SpyreTensorLayout(*layout)
        with suppress(LaunchError):  # torch-spyre has layouts of the memory as if it had one dim
            transfer_geometry(chosen, tuple(size), tuple(stride))
            return torch.empty(size, **options, device_layout=chosen)
    return torch.empty_strided(size, stride, **options)


def _preparation(call: Call, loaded: dict[str, Any]) -> float:
    from spyre.runtime.flex import load_code
    from spyre.runtime.spyrecode import read_code_directory
    from spyre.torch_backend.device import card_at

    begin = time.process_time()
    loaded[call["code"]] = load_code(read_code_directory(Path(call["code"])), card_at(-1))
    return time.process_time() - begin


def _launch(call: Call, loaded: dict[str, Any]) -> float:
    import torch

    from spyre.runtime.flex import LaunchPlan
    from spyre.runtime.kernel import Launch, PoolBuffer
    from spyre.runtime.program import POOL, owner_of
    from spyre.torch_backend.device import card_at
    from spyre.torch_backend.tensors import buffer_of

    kernel = loaded[call["code"]]
    tensors = [torch.empty(n // 2, dtype=torch.float16, device="spyre") for n in call["bytes"]]
    begin = time.process_time()
    buffers = [buffer_of(tensor) for tensor in tensors]
    owners = {owner_of(p.name) for p in kernel.kernel.bundle.program.parameters}
    pool = None
    if POOL in owners:
        pool = PoolBuffer(buffers[0].address_bytes, buffers[0].host_bytes)
        buffers = buffers[1:]
    numbers = sorted(k for k in owners if k is not None and k != POOL)
    memory = {k: buffer.tensor for k, buffer in zip(numbers, buffers, strict=True)}
    launch = Launch(memory, pool)
    plan = LaunchPlan.of(kernel.kernel, launch)
    stream = card_at(-1).streams.current
    kept = [buffer.memory for buffer in buffers]
    stream.submit(kernel.bind_at(plan, launch.addresses, kept))
    stream.synchronize()
    return time.process_time() - begin


_REPLAYS = {"copy": _copy, "preparation": _preparation, "launch": _launch}


if __name__ == "__main__":
    sys.exit(main())
