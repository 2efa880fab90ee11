"""Windows, packed sticks and shuffles: boxes against the reference, and findings of whole runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from qa.sanitize_mutants.shadow_reference import ShadowReference, distinct_offsets
from spyre.errors import SdscError
from spyre.hw.access import core_boxes, global_coordinate
from spyre.hw.device.device import Device
from spyre.hw.linking.linked_program import variants_of
from spyre.hw.reference.execution import addresses_elsewhere, element_offsets, slice_origin
from spyre.hw.reference.families import computed_boxes
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.layout import SpyreTensorLayout
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand
from spyre.mlir.bundle import write_bundle
from spyre.mlir.operation.operation import Component, Operation
from spyre.runtime.program.launch_spec import (
    LAUNCH_SPEC_FILE,
    ArgumentEntry,
    LaunchSpec,
    Role,
)
from spyre.runtime.run.session import run
from tests.examples import examples
from tests.hw.division_strategies import lookups, shuffles
from tests.hw.harness import link, literal_starts
from tests.hw.packed_strategies import convolutions, packed_matmuls, recodings, windowings
from tests.hw.strategies import seeds
from tests.mlir.window_recipes import Windows, conv2d, pool
from tests.runtime.launch_specs import write_launch_spec
from tests.sanitizer.test_twin import DEVICE as TWIN_DEVICE, REGIONS, found_counts

DEVICE = Device(threads=1, sanitize="init,race,lx")

operations = st.one_of(
    *(convolutions(kind) for kind in ("", "int4")),
    windowings("maxpoolfwd", 1, {}),
    windowings("depthwiseconv2dnative", 2, {}),
    *(packed_matmuls(kind) for kind in ("int8", "int4")),
    recodings("csqint4wt", ("SEN169_FP16", "SENINT4"), 1, {"scaleact": 0x3E00, "shiftact": 0}),
)


@examples(150)
@given(op=operations)
def test_boxes_are_the_sticks_of_the_elements(op: Operation):
    """Exactly; but of irregular gaps between windows, that a box fills."""
    for k, tensor in enumerate(op.tensors):
        boxes = core_boxes(op, tensor)
        for position, (box, offsets) in enumerate(zip(boxes, distinct_offsets(op, k), strict=True)):
            sticks = np.unique(offsets // 128)
            found = box.walk.offsets() // 128 if box is not None else np.zeros(0)
            assert len(np.unique(found)) == len(found)
            if k == 0 and has_gaps(op):
                assert set(found.tolist()) >= set(sticks.tolist())
                assert found.min(initial=0) == sticks.min(initial=0)
                assert found.max(initial=0) == sticks.max(initial=0)
            else:
                assert np.array_equal(np.unique(found), sticks), (tensor.name, position)


def has_gaps(op: Operation) -> bool:
    """True if an input element between the first and the last may be under no window."""
    return any(w.dilation > 1 or w.stride > op.extents[w.window_dim] for w in op.windows.values())


@examples(60)
@given(op=operations, seed=seeds)
def test_sticks_lie_at_the_coordinate_named(op: Operation, seed: int):
    rng = np.random.default_rng(seed)
    tensor = op.inputs[0]
    position = int(rng.integers(len(op.cores)))
    box = core_boxes(op, tensor)[position]
    if box is None:
        return
    offset = int(rng.choice(box.walk.offsets()))
    named = dict(global_coordinate(op, tensor, box, position, offset))
    assert element_at(op, position, named) // 128 * 128 == offset


def element_at(op: Operation, position: int, named: dict[str, int]) -> int:
    """Offset from the core's start of the element of the first input at global ``named``."""
    tensor, origin = op.inputs[0], slice_origin(op, position)
    for dim, window in op.windows.items():
        origin[dim] *= window.stride
    local = {dim: np.array([named.get(dim, origin[dim]) - origin[dim]]) for dim in op.dims}
    return int(element_offsets(op, tensor, local)[0])


@examples(100)
@given(op=operations, seed=seeds, written=st.booleans())
def test_counts(op: Operation, seed: int, written: bool):
    """As many sticks as the twin finds, nothing where all of it was written."""
    if has_gaps(op):
        return
    TWIN_DEVICE.reset()
    twin, starts = ShadowReference(), literal_starts(op)
    rng = np.random.default_rng(seed)
    assert TWIN_DEVICE.sanitizer is not None
    for address in touched(op, len(op.tensors) - 1, starts):
        if written or rng.random() < 0.8:
            TWIN_DEVICE.sanitizer.written(address, 128)
            twin.upload(address, 128)
    TWIN_DEVICE.executor.run(link(TWIN_DEVICE, [op], REGIONS))
    twin.execute(op, starts)
    found = found_counts()
    assert found == twin.counts
    assert not (written and found)


def touched(op: Operation, operands: int, starts: np.ndarray) -> list[int]:
    """Addresses of the sticks of the first ``operands`` operands."""
    found = [
        np.unique((offsets + start) // 128)
        for k in range(operands)
        for offsets, start in zip(distinct_offsets(op, k), starts[k], strict=True)
    ]
    return (np.unique(np.concatenate(found)) * 128).tolist()


# --- shuffles, lookups -------------------------------------------------------------------------

divided = st.one_of(shuffles(), lookups())


def elsewhere(op: Operation, operand: int) -> set[int]:
    """Sticks of an operand, wherever the reference says its elements lie."""
    starts = literal_starts(op)
    return {
        address // 128
        for core, box in computed_boxes(op)
        for address in addresses_elsewhere(op, starts, operand, core, box).ravel().tolist()
    }


@examples(25)
@given(op=shuffles())
def test_cells_are_the_sticks_of_the_elements(op: Operation):
    found: dict[int, set[int]] = defaultdict(set)
    for variant in variants_of(link(DEVICE, [op], REGIONS), 0):
        for k, tensor in enumerate(variant.op.tensors):
            for position, box in enumerate(core_boxes(variant.op, tensor)):
                assert box is not None
                at = int(variant.starts[0, k, position]) + box.walk.offsets()
                found[k] |= set((at // 128).tolist())
    assert found == {k: elsewhere(op, k) for k in range(2)}


def run_after(op: Operation, written: Sequence[int], *more: Operation) -> list[str]:
    """Codes found when ``op`` and ``more`` run after the host wrote the sticks ``written``."""
    assert DEVICE.sanitizer is not None
    DEVICE.reset()
    for stick in written:
        DEVICE.sanitizer.written(128 * stick, 128)
    DEVICE.executor.run(link(DEVICE, [op, *more], REGIONS))
    return sorted(finding.code for finding in DEVICE.sanitizer.take())


@examples(40)
@given(op=divided, data=st.data())
def test_other_scratchpads(op: Operation, data: st.DataObject):
    """Nothing where all is written; a stick left out, in whatever scratchpad, is found."""
    first, *others = (elsewhere(op, k) for k in range(len(op.inputs)))
    written = sorted(first.union(*others))
    assert run_after(op, written) == []
    written.remove(data.draw(st.sampled_from(sorted(first))))
    assert run_after(op, written) == ["SPY710"]


def shuffle(
    first: tuple[dict[str, int], int], second: tuple[dict[str, int], int], rows: int = 24
) -> Operation:
    """From one division over 12 cores, at an address in LX, to another."""
    tensors = [
        OperandSpec(
            dims=("mb", "out"),
            stick=(("out", 64),),
            base=base,
            component=Component.LX,
            role=f"R{k}",
            own_slices=slices,
            own_core_slices=tuple(
                {"mb": core // slices["out"], "out": core % slices["out"]} for core in range(12)
            ),
        )
        for k, (slices, base) in enumerate((first, second))
    ]
    extents = {"mb": rows, "out": 12 * 64}
    spec = OperationSpec("shuffle", extents, tensors[:1], tensors[1:], {"out": 12})
    return build_operation(spec)


def test_cells_belong_to_their_tensor():
    """Written in cells of 6 rows, read in cells of 8: parts of one tensor, nothing is torn."""
    whole = ({"mb": 1, "out": 12}, 1 << 16)
    first = shuffle(({"mb": 4, "out": 3}, 0), whole)
    second = shuffle(whole, ({"mb": 3, "out": 4}, 1 << 17))
    assert run_after(first, sorted(elsewhere(first, 0)), second) == []


def ring(source: int, target: int) -> Operation:
    """Every one of four cores gets the rows of its neighbour."""
    rows = tuple({"mb": k} for k in range(4))
    turned = tuple({"mb": (k + 1) % 4} for k in range(4))
    tensors = [
        OperandSpec(
            dims=("mb", "out"),
            stick=(("out", 64),),
            base=base,
            component=Component.LX,
            role=f"R{k}",
            own_slices={"mb": 4},
            own_core_slices=own,
        )
        for k, (base, own) in enumerate(((source, rows), (target, turned)))
    ]
    spec = OperationSpec("shuffle", {"mb": 32, "out": 64}, tensors[:1], tensors[1:], {"mb": 4})
    return build_operation(spec)


@pytest.mark.parametrize(("target", "refused"), [(8192, False), (1024, False), (896, True)])
def test_what_others_read_is_not_written_over(target: int, refused: bool):
    """8 sticks on each of four cores, read by the neighbour while the core writes to ``target``."""
    op = ring(0, target)
    pads = [(LX_BASE + core * LX_BYTES) // 128 for core in range(4)]
    written = [pad + k for pad in pads for k in range(8)]
    if refused:
        with pytest.raises(SdscError, match="SPY261"):
            run_after(op, written)
    else:
        assert run_after(op, written) == []


def test_rings_of_rings():
    """All parts of a shuffle's result are written for the next shuffle; a shifted read is torn."""
    there, back = ring(0, 4096), ring(4096, 8192)
    pads = [(LX_BASE + core * LX_BYTES) // 128 for core in range(4)]
    written = [pad + k for pad in pads for k in range(8)]
    assert run_after(there, written, back) == []
    assert run_after(there, written, ring(4096 + 512, 8192)) == ["SPY710", "SPY731"]


# --- whole programs ----------------------------------------------------------------------------

PADDED = Windows((3, 3), (2, 2), padding=((1, 1), (1, 1)))
HOST = (1, 8, 8, 64)
SHARED = {"i": 2}


def convolved(directory: Path, missing: bool) -> Path:
    """A convolution with implied padding, of an argument or of the unwritten pool."""
    builder = BundleBuilder()
    w, y, x = (builder.argument(size) for size in (9 * 64 * 128, 16 * 128, 64 * 128))
    place = HostOperand(builder.temporary(64 * 128).at() if missing else x.at())
    builder.add(conv2d(HOST, 64, PADDED, place, HostOperand(w.at()), HostOperand(y.at()), SHARED))
    return write(builder, directory, [(9 * 64, 64), (16, 64), (64, 64)])


def pooled(directory: Path, missing: bool) -> Path:
    """The same with a maximum, whose input has its channels in `out`."""
    builder = BundleBuilder()
    _, y, x = (builder.argument(size) for size in (9 * 64 * 128, 16 * 128, 64 * 128))
    place = HostOperand(builder.temporary(64 * 128).at() if missing else x.at())
    builder.add(pool("maxpoolfwd", HOST, PADDED, place, HostOperand(y.at()), SHARED))
    return write(builder, directory, [(9 * 64, 64), (16, 64), (64, 64)])


def write(builder: BundleBuilder, directory: Path, shapes: Sequence[tuple[int, ...]]) -> Path:
    """The bundle, with arguments of ``shapes``, the second of which it writes."""
    write_bundle(builder.build(), directory)
    roles = (Role.INPUT, Role.OUTPUT, Role.INPUT)
    arguments = tuple(
        ArgumentEntry(k, role, shape, "float16", SpyreTensorLayout.from_host(shape, "float16"))
        for k, (role, shape) in enumerate(zip(roles, shapes, strict=True))
    )
    spec = LaunchSpec(1, "k", arguments, pool_size=builder.pool_bytes)
    write_launch_spec(directory / LAUNCH_SPEC_FILE, spec)
    return directory


@pytest.mark.parametrize("make", [convolved, pooled])
@pytest.mark.parametrize("missing", [False, True])
def test_programs(make, missing: bool, tmp_path: Path):
    found = run(make(tmp_path, missing), device=Device(sanitize="init,race,lx,memory")).sanitizer
    assert [f.code for f in found] == (["SPY710"] if missing else [])
    if missing:
        assert found[0].sticks == 64 + 8
        channels = "out" if make is pooled else "in"
        assert found[0].coordinate == (("mb", 0), ("i", 0), ("j", 0), (channels, 0))
