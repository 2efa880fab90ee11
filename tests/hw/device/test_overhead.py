"""No Python per stick, row, core or tile: calls and time of launching linked programs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from spyre.hw.linking.linked_program import LinkedProgram
from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise
from tests.hw.harness import allocations_of, engine, link, region, windows

A, B, C = (HostOperand(region(k)) for k in range(3))
MOST_CALLS = 40
"""Python and C calls of one launch; today about a dozen."""


def linked(spec: OperationSpec, repeat: int = 1, threads: int = 1) -> LinkedProgram:
    op = build_operation(spec)
    program = link(engine(threads=threads), [op], allocations_of(windows(op)), repeat)
    engine(threads=threads).executor.run(program)
    return program


def count_calls(run: Callable[[], Any]) -> int:
    """Calls of Python and C functions while ``run`` runs, on this thread."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def launch_calls(program: LinkedProgram, threads: int = 1) -> int:
    executor = engine(threads=threads).executor
    return min(count_calls(lambda: executor.run(program)) for _ in range(3))


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_do_not_depend_on_size_or_cores(threads: int):
    specs = [
        pointwise("add", (4, 64), [A, B], C),
        pointwise("add", (2048, 4096), [A, B], C, {"mb": 32}),
        matmul(4, 64, 64, A, B, C),
        matmul(512, 512, 512, A, B, C, (), {"mb": 8, "out": 4}),
    ]
    counts = {launch_calls(linked(spec, 1, threads), threads) for spec in specs}
    assert len(counts) == 1
    assert counts.pop() <= MOST_CALLS


def test_calls_do_not_depend_on_loop_iterations():
    once, often = (linked(pointwise("add", (1, 64), [A, B], C), n) for n in (1, 1000))
    assert len(often.dispatch) == 1000
    assert launch_calls(once) == launch_calls(often)


def test_linking_a_loop_is_not_per_iteration():
    op = build_operation(pointwise("add", (64, 64), [A, B], C, {"mb": 32}))
    found = allocations_of(windows(op))
    calls = [count_calls(lambda n=n: link(engine(), [op], found, n)) for n in (2, 2000)]
    assert calls[1] <= 1.2 * calls[0] + 50
