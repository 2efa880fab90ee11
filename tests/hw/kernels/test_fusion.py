"""Chains of elementwise dispatches: strip by strip gives the results of one after the other.

Operands are at any place: the same, a stick or a row apart, in LX, elsewhere. The reference runs
dispatch by dispatch, which never chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.hw.kernels.driver import PARALLEL_NS
from spyre.hw.linking.binding import Allocation
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.hw.plan_table import CHAIN_LENGTH, COST_NS, MAX_CHAIN, UNITS
from spyre.hw.spec import LX_BASE, LX_BYTES, REGION_BYTES, STICK_BYTES
from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction
from spyre.mlir.operation.operation import Component
from tests.examples import examples
from tests.hw.harness import allocations_of, engine, link, region, windows

CORES, ROWS, COLUMNS = 4, 256, 256
SIZE = ROWS * COLUMNS * 2
"""Bytes of a tensor: 64 units, two strips."""
A, B, C, D, E = (HostOperand(region(k)) for k in range(5))
Step = tuple[str, Sequence[HostOperand], HostOperand]
UNARY, BINARY = ("neg", "relufwd", "exp"), ("add", "mul", "sub", "greaterequal")


def in_lx(place: int) -> HostOperand:
    """The tensor number ``place`` in every core's LX."""
    return HostOperand(place * (SIZE // CORES), component=Component.LX)


def linked(steps: Sequence[Step], repeat: int = 1, rows: int = ROWS) -> LinkedProgram:
    """A program of (operation, inputs, output), all of one shape and division."""
    ops = [
        build_operation(pointwise(name, (rows, COLUMNS), inputs, output, {"mb": CORES}))
        for name, inputs, output in steps
    ]
    return link(engine(threads=2), ops, allocations(ops), repeat)


def allocations(ops: Sequence[Any]) -> list[Allocation]:
    """One per region, which holds all operands that lie there."""
    regions: dict[int, list[Allocation]] = {}
    for span in allocations_of([window for op in ops for window in windows(op)]):
        regions.setdefault(span.address_bytes // REGION_BYTES, []).append(span)
    merged = []
    for number, group in regions.items():
        low = min(span.address_bytes for span in group)
        high = max(span.address_bytes + span.size_bytes for span in group)
        merged.append(Allocation(f"region {number}", low, high - low, "STANDARD"))
    return merged


def lengths(program: LinkedProgram) -> list[int]:
    return [int(n) for n in program.host_dispatch[:, CHAIN_LENGTH]]


def memory_after(program: LinkedProgram, chained: bool, threads: int = 2) -> list[bytes]:
    """Regions and LX after one run on the same random contents."""
    device = engine(threads=threads)
    rng = np.random.default_rng(3)
    spans = [(a.address_bytes, a.size_bytes) for a in program.binding.allocations]
    spans += [(LX_BASE + core * LX_BYTES, 8 * SIZE // CORES) for core in range(CORES)]
    for address, size in spans:
        codes = rng.integers(0x3C00, 0x4200, size // 2).astype(np.uint16)
        device.memory.write(address, codes.view(np.uint8))
    if chained:
        device.executor.run(program)
    else:
        device.executor.run_timed(program)
    return [device.memory.read(address, size).tobytes() for address, size in spans]


def assert_same(program: LinkedProgram) -> None:
    assert memory_after(program, True) == memory_after(program, False)


def test_a_chain_through_lx() -> None:
    program = linked(
        [("add", [A, B], in_lx(0)), ("mul", [in_lx(0), B], in_lx(0)),
         ("exp", [in_lx(0)], in_lx(1)), ("sub", [in_lx(1), A], C)]
    )  # fmt: skip
    assert lengths(program) == [4, 3, 2, 1]
    assert_same(program)


def test_a_chain_on_several_threads() -> None:
    program = linked([("add", [A, B], C), ("exp", [C], C), ("mul", [C, A], D)], rows=16 * ROWS)
    assert lengths(program) == [3, 2, 1]
    assert program.tables[:, COST_NS].sum() > PARALLEL_NS
    assert_same(program)


def test_what_shares_nothing_with_the_chain_begins_another() -> None:
    program = linked([("add", [A, A], C), ("neg", [C], C), ("mul", [B, B], D), ("neg", [D], E)])
    assert lengths(program) == [2, 1, 2, 1]
    assert_same(program)


def test_what_reads_an_operand_of_the_chain_joins_it() -> None:
    program = linked([("add", [A, B], C), ("neg", [C], C), ("mul", [A, B], D), ("neg", [D], E)])
    assert lengths(program) == [4, 3, 2, 1]
    assert_same(program)


def test_iterations_over_the_same_operands_are_one_chain() -> None:
    program = linked([("add", [A, B], in_lx(0)), ("neg", [in_lx(0)], C)], repeat=3)
    assert lengths(program) == [6, 5, 4, 3, 2, 1]
    assert_same(program)


def test_an_accumulator_chains_through_iterations() -> None:
    program = linked([("add", [A, C], C)], repeat=MAX_CHAIN + 2)
    assert lengths(program) == [*range(MAX_CHAIN, 0, -1), 2, 1]
    assert_same(program)


@pytest.mark.parametrize("moved_bytes", [STICK_BYTES, -STICK_BYTES, ROWS * STICK_BYTES])
def test_overlap_ends_a_chain(moved_bytes: int) -> None:
    away = HostOperand(region(2) + moved_bytes)
    program = linked([("add", [A, B], C), ("neg", [away], D), ("mul", [C, A], E)])
    assert lengths(program) == [1, 1, 1]
    assert_same(program)


def test_what_a_later_member_overwrites_elsewhere_ends_a_chain() -> None:
    away = HostOperand(region(0) + STICK_BYTES)
    program = linked([("add", [A, B], C), ("neg", [C], away)])
    assert lengths(program) == [1, 1]
    assert_same(program)


@pytest.mark.parametrize("moved_bytes", [STICK_BYTES, -STICK_BYTES, ROWS * STICK_BYTES])
def test_units_run_in_order_where_one_reads_sticks_that_another_writes(moved_bytes: int) -> None:
    away = HostOperand(region(2) + moved_bytes)
    program = linked([("neg", [A], C), ("exp", [away], C), ("neg", [C], C)], rows=16 * ROWS)
    assert lengths(program) == [1, 0, 1]
    assert program.tables[:, COST_NS].sum() > PARALLEL_NS
    on_two_threads = memory_after(program, False)
    assert on_two_threads == memory_after(program, False, threads=1)
    assert on_two_threads == memory_after(program, True)


def overlapping(name: str) -> OperationSpec:
    """An operation of several units whose output begins two sticks into its input."""
    moved = HostOperand(region(0) + 2 * STICK_BYTES)
    if name == "sum":
        return reduction(name, (4, 16 * ROWS, COLUMNS), (0,), A, moved, {"mb": CORES})
    if name == "batchmatmul":
        return matmul(16 * ROWS, COLUMNS, COLUMNS, A, B, moved)
    return pointwise(name, (16 * ROWS, COLUMNS), [A], moved, {"mb": CORES})


@pytest.mark.parametrize("name", ["identity", "sum", "batchmatmul", "exp"])
def test_units_of_any_operation_run_in_order_where_they_overlap(name: str) -> None:
    op = build_operation(overlapping(name))
    program = link(engine(threads=2), [op], allocations([op]))
    assert lengths(program) == [0]
    assert program.tables[0, UNITS] > 1
    assert memory_after(program, False) == memory_after(program, False, threads=1)


@pytest.mark.parametrize("name", ["identity", "sum", "batchmatmul"])
def test_units_of_other_operations_run_at_once_where_they_do_not(name: str) -> None:
    spec = overlapping(name)
    op = build_operation(replace(spec, outputs=[replace(spec.outputs[0], base=region(2))]))
    assert lengths(link(engine(threads=2), [op], allocations([op]))) == [1]


def test_small_work_runs_in_order_too() -> None:
    away = HostOperand(region(0) + STICK_BYTES)
    program = linked([("neg", [A], away), ("neg", [A], A), ("neg", [A], B)], rows=64)
    assert lengths(program) == [0, 1, 1]


def test_one_code_per_stick_is_no_stick_of_its_own() -> None:
    column = HostOperand(region(2), absent_axes=(1,))
    program = linked([("add", [A, B], C), ("mul", [C, column], D)])
    assert lengths(program) == [1, 1]
    assert_same(program)


def test_small_work_is_not_chained() -> None:
    ops = [
        build_operation(pointwise("add", (16, 64), [A, B], C)),
        build_operation(pointwise("neg", (16, 64), [C], D)),
    ]
    assert lengths(link(engine(), ops, allocations(ops))) == [1, 1]


PLACES = st.one_of(
    st.integers(0, 2).map(in_lx),
    st.builds(
        lambda k, moved: HostOperand(region(k) + moved),
        st.integers(0, 2),
        st.sampled_from((0, 0, 0, STICK_BYTES, 64 * STICK_BYTES, ROWS * STICK_BYTES)),
    ),
)
STEPS = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.tuples(PLACES), PLACES),
    st.tuples(st.sampled_from(BINARY), st.tuples(PLACES, PLACES), PLACES),
)


@examples(60)
@given(steps=st.lists(STEPS, min_size=2, max_size=6), repeat=st.integers(1, 3))
def test_any_sequence(steps: list[Any], repeat: int) -> None:
    assert_same(linked(steps, repeat))
