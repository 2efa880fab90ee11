"""Boxes of the memory that cores touch, against the reference's addresses; and scatters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from qa.sanitize_mutants.touched import visited_offsets
from spyre.errors import UnsupportedError
from spyre.hw.access import Box, canonical_cores, core_boxes, global_coordinate
from spyre.hw.device.device import Device
from spyre.hw.reference.execution import element_offsets, slice_origin
from spyre.hw.sanitizer.tables import nest_words
from spyre.hw.spec import REGION_BYTES
from spyre.layout.access_map import AccessMap, Axis
from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, reduction
from spyre.mlir.operation.operation import Indirection, Operation
from tests.examples import examples
from tests.hw.harness import link, small_numbers, windows
from tests.hw.movement_strategies import conversion_specs, copy_specs, gathers, restickify_specs
from tests.hw.strategies import elementwise_specs, matmul_specs, reduction_specs, seeds
from tests.sanitizer.test_twin import REGIONS

specs = st.one_of(
    elementwise_specs("add", 2),
    reduction_specs("sum"),
    matmul_specs(),
    copy_specs(),
    conversion_specs("dl16tofp32", None),
    restickify_specs(),
)


@examples(150)
@given(spec=specs)
def test_boxes_are_the_sticks_of_the_elements(spec: OperationSpec):
    op = build_operation(spec)
    for tensor in op.tensors:
        for position, box in enumerate(core_boxes(op, tensor)):
            sticks = np.unique(visited_offsets(op, tensor, position) // 128)
            found = np.unique(box.walk.offsets() // 128) if box is not None else np.zeros(0)
            assert np.array_equal(found, sticks), (tensor.name, position)


def test_too_many_separate_axes():
    axes = (Axis(2, (128 * 3 ** (11 - k),)) for k in range(11))
    box = Box(AccessMap((0,), tuple(axes)), ())
    with pytest.raises(UnsupportedError, match="SPY737"):
        nest_words(box, True)


@examples(60)
@given(spec=st.one_of(elementwise_specs("add", 2), matmul_specs()), seed=seeds)
def test_coordinates_lead_back(spec: OperationSpec, seed: int):
    """The coordinate named for a stick has its element in that stick."""
    op = build_operation(spec)
    rng = np.random.default_rng(seed)
    for tensor in op.tensors:
        position = int(rng.integers(len(op.cores)))
        box = core_boxes(op, tensor)[position]
        assert box is not None
        offset = int(rng.choice(box.walk.offsets()))
        named = dict(global_coordinate(op, tensor, box, position, offset))
        origin = slice_origin(op, position)
        local = {dim: np.array([named.get(dim, origin[dim]) - origin[dim]]) for dim in op.dims}
        assert element_offsets(op, tensor, local)[0] // 128 * 128 == offset


def test_partial_sums_are_one_core():
    splits = {"mb": 2, "out": 2}
    spec = reduction("sum", (4, 256), (1,), HostOperand(0), HostOperand(REGION_BYTES), splits)
    op = build_operation(spec)
    rows = [core["mb"] for core in op.core_slices]
    assert canonical_cores(op) == tuple(rows.index(row) for row in rows)
    assert len(set(canonical_cores(op))) == 2


Gather = tuple[Operation, int, int]
DEVICE = Device(threads=1, sanitize="init,race")


def run_indexed(gather: Gather, seed: int, operand: int, leave_out: int | None) -> list[str]:
    """Codes found when every operand but ``leave_out`` was uploaded; indices are in range."""
    op, rows, size = gather
    DEVICE.reset()
    rng = np.random.default_rng(seed)
    for window in windows(op, {operand: size}):
        if window.operand == leave_out:
            continue
        is_index = op.tensors[window.operand].indirection is Indirection.INDEX
        count = (window.high - window.low) // 4
        values = rng.integers(0, rows, count) if is_index else small_numbers(rng, count)
        dtype = np.int32 if is_index else np.float32
        DEVICE.memory.write(window.low, values.astype(dtype).view(np.uint8))
    DEVICE.executor.run(link(DEVICE, [op], REGIONS))
    assert DEVICE.sanitizer is not None
    return [finding.code for finding in DEVICE.sanitizer.take()]


@examples(30)
@given(gather=gathers(), seed=seeds)
def test_gather(gather: Gather, seed: int):
    assert run_indexed(gather, seed, 0, None) == []


@examples(10)
@given(gather=gathers(), seed=seeds)
def test_unwritten_indices_are_found(gather: Gather, seed: int):
    """Fresh memory holds zeros, which are good indices: only the sanitizer notices."""
    assert run_indexed(gather, seed, 0, 1) == ["SPY710"]


@examples(30)
@given(gather=gathers(scatter=True), seed=seeds)
def test_scatter_counts_as_writing_the_rest_of_its_tensor(gather: Gather, seed: int):
    assert run_indexed(gather, seed, 2, 2) == []
    assert DEVICE.sanitizer is not None
    value = next(w for w in windows(gather[0], {2: gather[2]}) if w.operand == 2)
    assert DEVICE.sanitizer.shadow.of_range(value.low, gather[2]).all()
