"""Random operations of every family: moved at link level against linked anew, field by field."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from spyre.hw.linking.binding import AddressOwners, Allocation, Binding
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.hw.linking.linker import Linker
from spyre.hw.spec import REGION_BITS, REGION_BYTES
from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.operation.operation import Component, Operation
from tests.examples import examples
from tests.hw.division_strategies import lookups, shuffles
from tests.hw.harness import make_program
from tests.hw.movement_strategies import (
    conversion_specs,
    copy_specs,
    gathers,
    paged,
    restickify_specs,
)
from tests.hw.packed_strategies import convolutions, packed_matmuls
from tests.hw.plans.test_uneven import scattered
from tests.hw.strategies import elementwise_specs, matmul_specs, reduction_specs, seeds
from tests.runtime.launches import assert_same, is_relocatable, relocated

SEGMENT_BYTES = 1 << 32
"""Room the tests' operands take in a region."""


def plain(found: OperationSpec | Operation | tuple[Operation, int, int]) -> Operation:
    found = found[0] if isinstance(found, tuple) else found
    return build_operation(found) if isinstance(found, OperationSpec) else found


operations = st.one_of(
    elementwise_specs("add", 2),
    reduction_specs("sum"),
    matmul_specs(),
    copy_specs(),
    conversion_specs("dl16tofp32", False),
    restickify_specs(),
    gathers(),
    gathers(scatter=True),
    paged(),
    lookups(),
    shuffles(),
    convolutions(""),
    packed_matmuls("int8"),
).map(plain)


def places(rng: np.random.Generator) -> list[int]:
    """Draw the begins of seven segments, in any region, up to three in one."""
    slots = rng.permutation(8 * 3)[:7]
    offsets = rng.integers(0, 1 << 20, 7) * 128
    starts = slots // 3 * REGION_BYTES + slots % 3 * (5 << 30) + offsets
    return [int(start) for start in starts]


def linker_of(op: Operation) -> Linker:
    return Linker(make_program(1, 2), {"sdsc_0.json": op}, 0, 1)


def linked_at(linker: Linker, starts: list[int]) -> LinkedProgram:
    allocations = tuple(
        Allocation(f"t{k}", start, SEGMENT_BYTES, device_dims=()) for k, start in enumerate(starts)
    )
    owners = AddressOwners({}, {k: k for k in range(7)})
    segments = dict(enumerate(starts))
    return linker.link(Binding(segments=segments, allocations=allocations, owners=owners))


def moves(op: Operation) -> bool:
    """True if the cores of every tensor in HBM are in one segment."""
    held = [t for t in op.tensors if t.component is Component.HBM]
    return all(len({start >> REGION_BITS for start in t.starts}) == 1 for t in held)


def check(op: Operation, seed: int) -> None:
    rng = np.random.default_rng(seed)
    linker = linker_of(op)
    first, bases = linked_at(linker, places(rng)), places(rng)
    moved = relocated(first, bases)
    assert (moved is not None) == is_relocatable(first) == moves(op)
    if moved is not None:
        assert_same(moved, linked_at(linker, bases))
        assert_same(moved, linked_at(linker_of(op), bases))


@examples(150)
@given(op=operations, seed=seeds)
def test_random_operations(op: Operation, seed: int):
    check(op, seed)


@examples(40)
@given(spec=elementwise_specs("sub", 2), seed=seeds)
def test_random_operations_on_per_core_tensors(spec: OperationSpec, seed: int):
    """Tensors of the cores' own all over memory do not move; where all is in one place they do."""
    check(scattered(build_operation(spec), np.random.default_rng(seed)), seed)
