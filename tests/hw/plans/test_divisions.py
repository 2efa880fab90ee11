"""shuffle, and operations that read other cores' scratchpads: bit for bit as the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from msgspec.structs import replace

from spyre.errors import SdscError, UnsupportedError
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation, build_sdsc
from spyre.mlir.builder.recipes import HostOperand, reduction
from spyre.mlir.operation.operation import Component, Operation
from spyre.mlir.sdsc.inspection import inspect_sdsc
from spyre.mlir.sdsc.reader import read_operation
from spyre.mlir.sdsc.writer import write_operation
from tests.examples import examples
from tests.hw.division_strategies import elements, lookups, shuffles
from tests.hw.harness import Trial, allocations_of, compare, engine, link, region, windows
from tests.hw.kernels.test_data_movement import any_bits
from tests.hw.strategies import seeds, thread_counts

MOST = 1 << 14


@examples(60)
@given(op=shuffles(), seed=seeds, threads=thread_counts)
def test_shuffle(op: Operation, seed: int, threads: int):
    assume(elements(op) * len(op.cores) <= MOST * 4)
    compare(op, Trial(any_bits, seed=seed, threads=threads))


@examples(60)
@given(op=lookups(), seed=seeds, threads=thread_counts)
def test_reading_what_another_core_holds(op: Operation, seed: int, threads: int):
    assume(elements(op) <= MOST)
    compare(op, Trial(seed=seed, threads=threads))


@examples(40)
@given(op=shuffles())
def test_written_shuffles_read_back(op: Operation):
    sdsc = write_operation(op)
    assert inspect_sdsc(sdsc, "f").findings == ()
    read = read_operation(sdsc, op.file)
    for mine, theirs in zip(op.tensors, read.tensors, strict=True):
        assert theirs.own_core_slices == tuple(
            {d: row[d] for d in mine.dims} if row else {} for row in mine.own_core_slices
        )
        assert theirs.own_slices == {d: mine.own_slices[d] for d in mine.dims}


# --- an all-gather with known numbers ---------------------------------------------------------

ROWS, LANES, CORES, GROUP = 32, 64, 8, 4


def gather(**changes) -> OperationSpec:
    """Shards of 4 rows on 8 cores; afterwards cores 0-3 hold the first half, 4-7 the second."""
    source = OperandSpec(
        ("mb", "out"),
        (("out", LANES),),
        0,
        component=Component.LX,
        own_slices={"mb": CORES},
        own_core_slices=tuple({"mb": c, "out": 0} for c in range(CORES)),
    )
    target = replace(
        source,
        base=1 << 16,
        own_slices={"mb": CORES // GROUP},
        own_core_slices=tuple({"mb": c // GROUP, "out": 0} for c in range(CORES)),
    )
    source = replace(source, **changes.pop("source", {}))
    target = replace(target, **changes.pop("target", {}))
    fields = {"name": "shuffle", **changes}
    return OperationSpec(
        extents={"mb": ROWS, "out": LANES},
        inputs=[source],
        outputs=[target],
        splits={"mb": CORES},
        **fields,
    )


def test_all_gather_in_groups():
    op = build_operation(gather())
    memory = engine().memory
    for core in range(CORES):
        shard = np.repeat(np.arange(4 * core, 4 * core + 4, dtype=np.uint16), LANES)
        memory.write(LX_BASE + core * LX_BYTES, shard.view(np.uint8))
    engine().executor.run(link(engine(), [op], []))
    for core in range(CORES):
        found = memory.read(LX_BASE + core * LX_BYTES + (1 << 16), 16 * 128).view(np.uint16)
        first = core // GROUP * 16
        assert found.reshape(16, LANES)[:, 0].tolist() == list(range(first, first + 16))


def rows(*indices: int | None) -> tuple[dict[str, int], ...]:
    return tuple({} if i is None else {"mb": i, "out": 0} for i in indices)


BAD = {
    "not in LX": (
        {"source": {"component": Component.HBM}},
        "Tensor0 of a shuffle is not in LX",
    ),
    "overlapping": ({"target": {"base": 256}}, "Tensor1 overlaps Tensor0, which other cores read"),
    "without a source": (
        {"source": {"own_core_slices": rows(0, 1, 2, 3, 4, 5, 6, 6)}},
        "core 4 needs a slice of Tensor0 that no core holds",
    ),
    "index out of range": (
        {"target": {"own_core_slices": rows(0, 0, 0, 0, 1, 1, 1, 2)}},
        "core 7 has a slice of Tensor1 out of range",
    ),
    "not divisible": (
        {"target": {"own_slices": {"mb": 5}}},
        "own slices of Tensor1 do not divide dim mb",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_impossible_shuffles(name: str):
    changes, message = BAD[name]
    op = build_operation(gather(**changes))
    with pytest.raises(SdscError) as caught:
        link(engine(), [op], allocations_of(windows(op)))
    assert caught.value.code == "SPY261"
    assert message in str(caught.value)
    findings = [f for f in inspect_sdsc(write_operation(op), "f").findings if f.code == "SPY261"]
    assert message in str(findings[0])


def test_slices_that_meet_within_a_stick():
    source = {"own_slices": {"out": 8}, "own_core_slices": tuple({"out": c} for c in range(8))}
    op = build_operation(gather(source=source))
    with pytest.raises(UnsupportedError, match=r"SPY517.*meet within a stick"):
        link(engine(), [op], [])


def divided_sum(axis: int, splits: dict[str, int], own: dict[str, int], *slices) -> Operation:
    """A sum over ``axis`` of a tensor in LX, divided over cores in its own way."""
    source = HostOperand(0, component=Component.LX)
    spec = reduction("sum", (ROWS, LANES * 4), (axis,), source, HostOperand(region(1)))
    rows_ = tuple({"mb": 0, "out": 0, **row} for row in slices)
    divided = replace(spec.inputs[0], own_slices=own, own_core_slices=rows_)
    return build_operation(replace(spec, inputs=[divided], splits=splits))


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_of_whole_tensors_on_every_core(axis: int):
    """Split work over a tensor that all cores hold: each reads its part of its copy."""
    dim = "out" if axis == 0 else "mb"
    compare(divided_sum(axis, {dim: 4}, {"mb": 1, "out": 1}, *[{}] * 4))


def test_reductions_of_another_cores_share():
    """Core c works on the rows that core 3 - c holds."""
    op = divided_sum(1, {"mb": 4}, {"mb": 4, "out": 1}, *[{"mb": 3 - c} for c in range(4)])
    compare(op)


def test_reductions_of_several_shares_are_refused():
    op = divided_sum(0, {"out": 2}, {"mb": 2, "out": 1}, {"mb": 0}, {"mb": 1})
    with pytest.raises(UnsupportedError, match="SPY517]: sumnonstick: own work slices of Tensor0"):
        link(engine(), [op], allocations_of(windows(op)))


def test_an_output_of_its_own_division():
    with pytest.raises(UnsupportedError, match=r"SPY517.*own work slices of the output"):
        link(engine(), [build_operation(gather(name="identity"))], [])


def test_own_slices_that_say_what_the_operation_says():
    """An identity whose input names the operation's slices again is an ordinary one."""
    spec = gather(name="identity", target={"own_slices": {}, "own_core_slices": ()})
    op = build_operation(spec)
    linked = link(engine(), [op], [])
    assert linked.plans[0][0].op.tensors[0].own_core_slices == ()
    assert build_sdsc(spec)
