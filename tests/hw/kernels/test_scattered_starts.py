"""Operations on several cores with a start address on each: engine and reference give the same.

Inputs begin anywhere near their place, so that no loop nest describes their starts; parts of the
output that belong to different cores are apart. What the engine does not do, it refuses by a code.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.errors import SpyreError
from spyre.hw.access import canonical_cores
from spyre.hw.ops import Family
from spyre.hw.plans.core_plan import reduction_groups
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.operation.operation import Operation, Tensor, footprint
from tests.examples import examples
from tests.hw.harness import Trial, compare, map_tensors, region, small_numbers
from tests.hw.kernels.test_kernels import MASK_BITS, REDUCTION_FILLS, constants_of, rows_of
from tests.hw.movement_strategies import copy_specs, restickify_specs
from tests.hw.strategies import (
    elementwise_specs,
    matmul_specs,
    modes,
    reduction_specs,
    seeds,
    thread_counts,
)

REDUCTIONS = {spec.name: spec for spec in rows_of(Family.REDUCTION)}
REFUSALS = ("SPY282", "SPY283", "SPY287", "SPY520", "SPY523", "SPY525")
NEAR_STICKS = 24
KINDS = st.sampled_from(["where it was", "anywhere", "by slices"])


def scattered(op: Operation, kind: str, seed: int) -> Operation:
    """``op`` with other starts: all inputs moved core by core, or by the slice of one dim."""
    rng = np.random.default_rng(seed)
    owners = canonical_cores(op)

    def moved(tensor: Tensor) -> Tensor:
        if kind == "where it was":
            return tensor
        if tensor in op.outputs:
            span = footprint(op, tensor).span_bytes
            places = rng.permutation(len(op.cores)) * span
            shifts = [0 if tensor.is_local else int(places[owner]) for owner in owners]
            lowest = min(tensor.starts)
            starts = tuple(tensor.starts) if tensor.is_local else tuple(lowest + s for s in shifts)
            return replace(tensor, starts=starts)
        sticks = rng.integers(0, NEAR_STICKS, len(op.cores))
        if kind == "by slices":
            dim = op.dims[int(rng.integers(len(op.dims)))]
            step = int(rng.integers(0, NEAR_STICKS))
            sticks = np.array([row.get(dim, 0) * step for row in op.core_slices])
        pairs = zip(tensor.starts, sticks.tolist(), strict=True)
        return replace(tensor, starts=tuple(start + STICK_BYTES * n for start, n in pairs))

    return map_tensors(op, moved)


def agree(op: Operation, trial: Trial) -> None:
    """Engine and reference give the same, or the engine refuses by a code."""
    try:
        compare(op, trial)
    except SpyreError as error:
        if error.code not in REFUSALS:
            raise


@pytest.mark.parametrize("name", REDUCTIONS)
@examples(40)
@given(data=st.data(), kind=KINDS, seed=seeds, mode=modes, threads=thread_counts)
def test_reductions_of_inputs_that_lack_dims(
    name: str, data: st.DataObject, kind: str, seed: int, mode: str, threads: int
):
    spec = REDUCTIONS[name]
    drawn = data.draw(
        reduction_specs(
            name.removesuffix("nonstick"),
            constants_of(spec),
            over_stick=not spec.nonstick,
            mask_bits=MASK_BITS.get(spec.kernel_op, 0),
            fp32=False,
        )
    )
    op = build_operation(replace(drawn, name=name))
    reduced = [d for d in op.dims if not op.outputs[0].holds(d)]
    lacking = data.draw(st.sets(st.sampled_from(reduced)))
    (source,) = op.inputs
    scale = {d: -2 if d in source.stick_dims else -1 for d in lacking if d in source.dims}
    op = replace(op, inputs=(replace(source, scale={**source.scale, **scale}),))
    agree(scattered(op, kind, seed), Trial(REDUCTION_FILLS[spec.kernel_op], mode, threads))


@examples(120)
@given(
    spec=st.one_of(elementwise_specs("add", 2), copy_specs(), restickify_specs(), matmul_specs()),
    kind=KINDS,
    seed=seeds,
    mode=modes,
    threads=thread_counts,
)
def test_other_operations(spec: OperationSpec, kind: str, seed: int, mode: str, threads: int):
    op = scattered(build_operation(spec), kind, seed)
    agree(op, Trial(small_numbers, mode, threads, seed=seed))


CORES = 4


def over_a_dim_that_neither_holds(step_sticks: int) -> Operation:
    """The sum over rows of which the tensors know nothing, one on each core."""
    shape = {"mb": CORES, "x": 3, "out": 64}
    source = OperandSpec(("out", "x", "mb"), (("out", 64),), region(0), {"mb": -1})
    target = OperandSpec(("out", "x", "mb"), (("out", 64),), region(1), {"mb": -1, "x": -1})
    op = build_operation(
        OperationSpec("sumnonstick", shape, [source], [target], splits={"mb": CORES})
    )
    starts = tuple(region(0) + core * step_sticks * STICK_BYTES for core in range(CORES))
    return replace(op, inputs=(replace(op.inputs[0], starts=starts),))


@pytest.mark.parametrize("step_sticks", [0, 1, 3, 5])
@pytest.mark.parametrize("mode", ["dl16", "dl16-chunk", "ieee"])
def test_cores_combine_what_each_of_them_reads(step_sticks: int, mode: str):
    op = over_a_dim_that_neither_holds(step_sticks)
    compare(op, Trial(small_numbers, mode, seed=step_sticks))
    assert [group.tolist() for group in reduction_groups(op)] == [list(range(CORES))]
