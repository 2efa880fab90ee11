"""``spyre doctor``: checks of this installation, as a table for reading and for bug reports.

All checks are made, also after one has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Literal

import msgspec
from msgspec.structs import asdict

import spyre
from spyre.cli.entry import guarded
from spyre.cli.options import CommandParser
from spyre.errors import SpyreError

EXIT_NOT_RUN = 2
NAME_WIDTH = 17
LIBRARIES = ("numpy", "numba", "llvmlite", "lark", "msgspec")
SERVING = {
    "vllm": ("0.27.1", "built from its sources with VLLM_TARGET_DEVICE=empty"),
    "spyre-inference": ("", "from its repository, with pip install --no-deps"),
    "torch-spyre": ("", "python -m spyre.frontend install CHECKOUT"),
    "hf-adapters-spyre": ("", "from its repository, with pip install --no-deps"),
    "transformers": ("5.14.1", "pip install transformers==5.14.1"),
}
"""By package: the version that was run, and how to have it."""
FEATURES = ("avx2", "avx512f", "avx512bw", "f16c")


class HealthCheck(msgspec.Struct, frozen=True):
    """``text``: the state that was found; ``hint``: how to repair it.

    Only the outcome "failed" makes the exit code 2.
    """

    name: str
    outcome: Literal["ok", "note", "failed"]
    text: str
    hint: str = ""


def doctor(arguments: Sequence[str], program: str) -> int:
    """Look at versions, processor, cache, PyTorch; run one small program. 2 if a check fails.

    With ``--serving`` also at the needs of vLLM.
    """

    def parse() -> argparse.Namespace:
        parser = CommandParser(prog=program, description="Say whether this installation works.")
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument(
            "--serving", action="store_true", help="also: vLLM with torch-spyre (docs/serving.md)"
        )
        return parser.parse_args(arguments)

    return guarded(program, parse, _examine)


def _examine(parsed: argparse.Namespace) -> int:
    checks = []
    for check in examine(parsed.serving):
        checks.append(check)
        if not parsed.json:
            _print(check)
    failed = any(check.outcome == "failed" for check in checks)
    if parsed.json:
        print(json.dumps({"ok": not failed, "checks": [asdict(c) for c in checks]}, indent=2))
    return EXIT_NOT_RUN if failed else 0


def _print(check: HealthCheck) -> None:
    print(f"{check.outcome:<7} {check.name:<{NAME_WIDTH}} {check.text}", flush=True)
    if check.hint:
        print(f"{'':<8}{'':<{NAME_WIDTH}} {check.hint}")


def examine(serving: bool = False) -> Iterator[HealthCheck]:
    """Yield all checks, each made when it is asked for. ``serving``: also those of vLLM."""
    makers: dict[str, Callable[[], HealthCheck]] = {
        "versions": _versions,
        "processor": _processor,
        "cache": _cache,
        "run": _run,
        "torch": _torch,
        **({name: partial(_package, name) for name in SERVING} if serving else {}),
        **({"programs": _programs} if serving else {}),
    }
    for name, make in makers.items():
        try:
            yield make()
        except SpyreError as error:
            yield HealthCheck(name, "failed", str(error))
        except Exception as error:  # of a broken library, which is what this looks for
            yield HealthCheck(name, "failed", f"{type(error).__name__}: {error}")


def _versions() -> HealthCheck:
    python = platform.python_version()
    found = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return HealthCheck("versions", "ok", f"spyre {spyre.__version__}, Python {python}, {found}")


def _processor() -> HealthCheck:
    from spyre import config
    from spyre.hw.kernels.intrinsics import has_feature

    machine = platform.machine()
    features = [name for name in FEATURES if machine == "x86_64" and has_feature(name)]
    text = f"{machine}, {' '.join(features) or 'no vector features that kernels use'}, "
    usable, threads = len(os.sched_getaffinity(0)), config.thread_count()
    text += f"{threads} of {usable} usable CPUs"
    if threads > usable:
        name = config.THREADS.name
        return HealthCheck("processor", "note", text, f"{name} asks for more than there are")
    return HealthCheck("processor", "ok", text)


def _cache() -> HealthCheck:
    from spyre.cache import directory, find_directory, kept

    _, reason = find_directory()
    text = f"{directory()}, {sum(size for _, _, size in kept()) / 1e6:.0f} MB"
    return HealthCheck("cache", "note" if reason else "ok", text, reason)


def _run() -> HealthCheck:
    """A bundle that is written, read, checked, linked and run: the sum of small integers."""
    import numpy as np

    from spyre.mlir.builder import BundleBuilder, HostOperand, pointwise
    from spyre.mlir.bundle import write_bundle
    from spyre.runtime.run import run

    shape = (128, 256)
    builder = BundleBuilder()
    x, y, total = (builder.argument(2 * shape[0] * shape[1]) for _ in range(3))
    operands = [HostOperand(x.at()), HostOperand(y.at())]
    builder.add(pointwise("add", shape, operands, HostOperand(total.at()), {"mb": 32}))
    integers = np.arange(shape[0] * shape[1], dtype=np.float16).reshape(shape) % 97
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        write_bundle(builder.build(), directory)
        result = run(directory, [integers, integers[::-1]])
    seconds = time.perf_counter() - begin
    if not np.array_equal(result.outputs[0], integers.astype(np.float32) + integers[::-1]):
        return HealthCheck("run", "failed", "a sum on 32 cores has wrong numbers")
    return HealthCheck("run", "ok", f"a sum on 32 cores is right; {seconds:.1f} s")


def _torch() -> HealthCheck:
    pins = [text for text in requires("spyre") or () if text.startswith("torch==")]
    wanted = pins[0].partition("==")[2].partition(";")[0].strip()
    try:
        found = version("torch")
    except PackageNotFoundError:
        hint = f"for the PyTorch device: pip install torch=={wanted}"
        return HealthCheck("torch", "note", "not installed", hint)
    if found.partition("+")[0] != wanted:
        hint = f"the PyTorch device needs torch {wanted}"
        return HealthCheck("torch", "failed", found, hint)
    import torch

    if not hasattr(torch, "spyre"):
        hint = "import spyre.torch_backend, or unset TORCH_DEVICE_BACKEND_AUTOLOAD"
        return HealthCheck("torch", "note", f"{found}, no device 'spyre'", hint)
    ones = torch.ones(2, 3, device="spyre")
    if not (ones + ones).cpu().eq(2).all():
        return HealthCheck("torch", "failed", f"{found}: 1 + 1 on 'spyre' is not 2")
    whose = "torch-spyre's" if "torch_spyre" in sys.modules else "this package's"
    cards = torch.accelerator.device_count()
    return HealthCheck("torch", "ok", f"{found}, device 'spyre' is {whose}, cards: {cards}")


def _package(name: str) -> HealthCheck:
    """One of `SERVING`."""
    wanted, how = SERVING[name]
    try:
        found = version(name)
    except PackageNotFoundError:
        return HealthCheck(name, "failed", "not installed", f"{how}: docs/serving.md")
    if wanted and found.partition("+")[0] != wanted:
        return HealthCheck(name, "note", found, f"run with {wanted} only: {how}")
    return HealthCheck(name, "ok", found)


def _programs() -> HealthCheck:
    """Check that a server's processes find the frontend and the compiler's command."""
    from spyre import config

    if (chosen := config.FRONTEND.read()) != "torch-spyre":
        hint = f"export {config.FRONTEND.name}=torch-spyre"
        return HealthCheck("programs", "failed", f"{config.FRONTEND.name}={chosen}", hint)
    if shutil.which("vllm") is None:
        folder = os.path.dirname(sys.executable)
        return HealthCheck("programs", "note", "no vllm on PATH", f"it is in {folder}")
    return HealthCheck("programs", "ok", f"{config.FRONTEND.name}=torch-spyre, vllm on PATH")
