"""Calls the operators in torch's wheel on the CPU, and prints names and digests of results.

``python -m qa.neighbour.wheel K/N`` calls piece K of N, with the same numbers in every process.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from qa.neighbour.runs import CRASHED, Outcome, Outcomes, run_process
from qa.opinfo.rules import EMPTY
from qa.opinfo.samples import DATABASE, load_database, seed_all
from qa.opinfo.trees import leaves
from qa.opinfo.ways import calls_of, selected

DATABASES = (DATABASE, "qa.opinfo.modules:MODULES", "qa.opinfo.modules:OPTIMIZERS")
CALLS_OF_EACH = 2
Call = tuple[str, Callable[[], Any]]


def run_wheel(piece: tuple[int, int], package: bool, deadline: float) -> Outcomes:
    """Return digests of all calls by name, from a process with or without the package."""
    with tempfile.TemporaryDirectory(prefix="neighbour-") as place:
        command = [sys.executable, "-m", "qa.neighbour.wheel", "/".join(map(str, piece))]
        ended = run_process(command, package, Path(place), deadline)
        lines = Path(place, "output").read_text(encoding="utf-8", errors="replace").splitlines()
    found = {
        name: Outcome(digest)
        for name, digest in (json.loads(line) for line in lines if line.startswith('["'))
    }
    if ended != 0:
        found["(process)"] = Outcome(CRASHED, lines[-1] if lines else "")
    return found


def main(piece: int, pieces: int) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for number, (name, call) in enumerate(_calls()):
        if number % pieces == piece - 1:
            seed_all(0)
            print(json.dumps([name, _digest(call)]), flush=True)


def _calls() -> Iterator[Call]:
    for path in DATABASES:
        yield from _calls_of_database(path)
    yield from _autocast_calls()


def _calls_of_database(path: str) -> Iterator[Call]:
    database = load_database(path)
    for way in ("forward", "backward"):
        for key in selected(database, "float32", way, None):
            if key not in EMPTY:
                yield f"{path.rpartition(':')[2]} {way} {key}", _samples_of(database[key], way)


def _samples_of(op: Any, way: str) -> Callable[[], Any]:
    def call() -> Any:
        return [
            one.function(*one.sample.args, **one.sample.kwargs)
            for one in calls_of(op, "float32", way, CALLS_OF_EACH)
        ]

    return call


def _autocast_calls() -> Iterator[Call]:
    """Yield the operations in the lists of torch's autocast tests."""
    from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists

    homes = {"torch": torch, "nn": torch._C._nn, "methods": torch.Tensor}
    lists = AutocastCPUTestLists(torch.device("cpu"))
    for title, entries in vars(lists).items():
        home = homes.get(title.partition("_")[0])
        for number, (name, args, *rest) in enumerate(entries if home else ()):
            options = rest[0] if rest and isinstance(rest[0], dict) else {}
            if hasattr(home, name):
                yield f"autocast {title} {number} {name}", _autocast(home, name, args, options)


def _autocast(home: Any, name: str, args: Any, options: dict[str, Any]) -> Callable[[], Any]:
    def call() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return getattr(home, name)(*(args if isinstance(args, tuple) else (args,)), **options)

    return call


def _digest(call: Callable[[], Any]) -> str:
    """Return a digest of a call's results, or of its error's class and first line."""
    try:
        seen = [_seen(leaf) for leaf in leaves(call())]
    except Exception as error:
        seen = [f"{type(error).__name__}: {error}".partition("\n")[0]]
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def _seen(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf) if isinstance(leaf, bool | int | float | complex) else type(leaf).__name__
    dense = leaf.detach() if leaf.layout is torch.strided else leaf.detach().to_dense()
    content = dense.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    numbers = hashlib.sha256(content.numpy().tobytes()).hexdigest()
    strides = leaf.stride() if leaf.layout is torch.strided else None
    return (
        str(leaf.dtype),
        tuple(leaf.shape),
        strides,
        str(leaf.device),
        type(leaf).__name__,
        numbers,
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1].split("/")))
