"""Random operations: extents, work slices, layouts, broadcasts, gaps and memories, all legal.

Every strategy gives an :class:`~spyre.mlir.builder.operations.OperationSpec` with literal
addresses, one region per operand, small enough for the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import msgspec
from hypothesis import strategies as st
from msgspec.structs import replace

from spyre.mlir.builder.operations import OperandSpec, OperationSpec
from spyre.mlir.operation.operation import Component
from tests.hw.harness import region

NAMES = ("mb", "x", "y", "i", "j")
SPLITS = (1, 1, 1, 2, 2, 3, 4, 5, 7, 8, 11, 16, 20, 25, 32)
MAX_CORES = 32
MAX_ELEMENTS = 1 << 15


seeds = st.integers(0, 2**32 - 1)
modes = st.sampled_from(["dl16", "dl16", "ieee", "dl16-chunk", "dl16:alu=trunc", "dl16:alu=even"])
thread_counts = st.sampled_from([1, 2])


class Grid(msgspec.Struct, frozen=True):
    """Iteration space: extents and work slices per dim, the stick dim and its lanes."""

    extents: dict[str, int]
    splits: dict[str, int]
    stick: str
    lanes: int

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(self.extents)


@st.composite
def grids(draw: st.DrawFn, lanes: int = 64, max_rank: int = 5, min_rank: int = 1) -> Grid:
    """1 to 5 dims, any of them the stick; at most 32 cores."""
    rank = draw(st.integers(min_rank, max_rank))
    dims = draw(st.permutations((*NAMES[: rank - 1], "out")))
    stick = draw(st.sampled_from(dims))
    extents, splits, cores, elements = {}, {}, 1, lanes
    for dim in dims:
        split = draw(st.sampled_from([s for s in SPLITS if s * cores <= MAX_CORES]))
        room = max(MAX_ELEMENTS // (elements * split), 1)
        steps = min(draw(st.integers(1, 9 if rank < 3 else 4)), room)
        if split > MAX_ELEMENTS // elements:
            split = 1
        cores *= split
        elements *= split * steps
        splits[dim] = split
        extents[dim] = split * steps * (lanes if dim == stick else 1)
    return Grid(extents, splits, stick, lanes)


@st.composite
def tensors(
    draw: st.DrawFn,
    grid: Grid,
    operand: int,
    absent: Sequence[str] = (),
    data_format: str = "SEN169_FP16",
    lx: bool | None = None,
    role: str = "",
    stick: str = "",
    gaps: bool = True,
) -> OperandSpec:
    """A tensor over the grid without ``absent`` dims, in any layout order, HBM or LX."""
    stick = stick or grid.stick
    in_lx = draw(st.booleans()) if lx is None else lx
    keep = [d for d in grid.dims if d not in absent or d == stick]
    listed = keep + draw(st.sampled_from([[], [d for d in grid.dims if d not in keep]]))
    order = tuple(draw(st.permutations(listed)))
    scale = {d: -2 if d == stick else -1 for d in absent if d in order}
    gap: dict[str, int] = {}
    if gaps and draw(st.integers(0, 3)) == 0:
        dim = draw(st.sampled_from(order))
        unit = grid.lanes if dim == stick else 1
        gap = {dim: draw(st.integers(1, 3)) * unit} if scale.get(dim, 1) == 1 else {}
    base = 4096 + operand * (1 << 18) if in_lx else region(operand)
    return OperandSpec(
        dims=order,
        stick=((stick, 32 if data_format != "SEN169_FP16" else 64),),
        base=base,
        scale=scale,
        data_format=data_format,
        component=Component.LX if in_lx else Component.HBM,
        gap=gap,
        role=role or f"R{operand}",
    )


def fits_lx(grid: Grid, word: int) -> bool:
    """Even with gaps on two dims, one core's part of the grid stays below its 256 KiB."""
    return prod(e // grid.splits[d] + 3 for d, e in grid.extents.items()) * word < 1 << 17


@st.composite
def elementwise_specs(
    draw: st.DrawFn,
    name: str,
    inputs: int,
    constants: dict[str, int] | None = None,
    fp32: bool | None = None,
    sparse: bool = False,
) -> OperationSpec:
    """An elementwise operation; all inputs but the first may lack any dims.

    ``sparse``: the first input keeps one stick per element.
    """
    wide = draw(st.booleans()) if fp32 is None else fp32
    data_format = "IEEE_FP32" if wide else "SEN169_FP16"
    grid = draw(grids(32 if wide else 64))
    lx = None if fits_lx(grid, 4) else False
    operands = []
    for k in range(inputs):
        absent = sorted(draw(st.sets(st.sampled_from(grid.dims), max_size=4))) if k else []
        absent = [grid.stick] if sparse else absent
        operands.append(draw(tensors(grid, k, absent, data_format, lx)))
    out = draw(tensors(grid, inputs, (), data_format, lx))
    order = draw(st.permutations(grid.dims))
    return OperationSpec(
        name=name,
        extents=grid.extents,
        inputs=operands,
        outputs=[out],
        splits=grid.splits,
        constants=constants or {},
        core_order=order,
        data_format=data_format,
    )


@st.composite
def reduction_specs(
    draw: st.DrawFn,
    name: str,
    constants: dict[str, int] | None = None,
    over_stick: bool | None = None,
    mask_bits: int | None = None,
    fp32: bool | None = None,
) -> OperationSpec:
    """A reduction over any dims, over the stick or not, split or not, masked or not."""
    wide = draw(st.booleans()) if fp32 is None else fp32
    data_format = "IEEE_FP32" if wide else "SEN169_FP16"
    with_stick = draw(st.booleans()) if over_stick is None else over_stick
    grid = draw(grids(32 if wide else 64, min_rank=1 if with_stick else 2))
    others = [d for d in grid.dims if d != grid.stick]
    minimum, most = (0, 1) if with_stick else (1, 2)
    reduced = (
        draw(st.lists(st.sampled_from(others), min_size=minimum, max_size=most, unique=True))
        if others
        else []
    )
    reduced += [grid.stick] if with_stick else []
    grid = _one_split(grid, reduced)
    lx = None if fits_lx(grid, 4) else False
    source = draw(tensors(grid, 0, (), data_format, lx))
    target = draw(tensors(grid, 1, reduced, data_format, lx=False))
    masks: dict[str, list[tuple[int, int]]] = {}
    extra: dict[str, int] = {}
    if mask_bits is not None and draw(st.booleans()):
        dim = draw(st.sampled_from(reduced))
        first = draw(st.integers(0, grid.extents[dim] - 1))
        masks = {dim: [(first, draw(st.integers(1, grid.extents[dim] - first)))]}
        extra = {"samv-maskvalue": mask_bits}
    return OperationSpec(
        name=name if with_stick else f"{name}nonstick",
        extents=grid.extents,
        inputs=[source],
        outputs=[target],
        splits=grid.splits,
        constants={**(constants or {}), **extra},
        constant_format="SEN169_FP16",
        masks=masks,
        core_order=draw(st.permutations(grid.dims)),
        data_format=data_format,
    )


def _one_split(grid: Grid, reduced: Sequence[str]) -> Grid:
    """Only one of the reduced dims may be divided among cores (SDSC reference §6.1)."""
    split = [d for d in reduced if grid.splits[d] > 1]
    return replace(grid, splits={**grid.splits, **dict.fromkeys(split[1:], 1)})


@st.composite
def matmul_specs(draw: st.DrawFn) -> OperationSpec:
    """Batch dims (B may lack them), several M dims, N and K of several sticks, any split."""
    batch = [f for f in ("y", "x") if draw(st.booleans())]
    rows = ["mb", *(["i"] if draw(st.booleans()) else [])]
    dims = draw(st.permutations([*batch, *rows, "out", "in"]))
    extents, splits, cores = {}, {}, 1
    for dim in dims:
        split = draw(st.sampled_from([s for s in SPLITS if s * cores <= MAX_CORES]))
        steps = draw(st.integers(1, 3))
        if dim in ("out", "in"):
            split = min(split, 5)
            steps = 64 * min(steps, 2 if split > 2 else 3)
        elif dim == "mb":
            steps = draw(st.sampled_from([1, 2, 5, 13, 14]))
        if prod(extents.values()) * split * steps > 1 << 22:
            split, steps = 1, 64 if dim in ("out", "in") else 1
        cores *= split
        splits[dim], extents[dim] = split, split * steps
    grid = Grid(extents, splits, "out", 64)
    shared_b = [d for d in batch if draw(st.booleans())]
    lx = False
    a = draw(tensors(grid, 0, ["out"], lx=lx, role="INPUT", stick="in"))
    b = draw(tensors(grid, 1, [*rows, *shared_b], lx=lx, role="KERNEL"))
    c = draw(tensors(grid, 2, ["in"], lx=lx, role="OUTPUT"))
    return OperationSpec(
        name="batchmatmul",
        extents=extents,
        inputs=[a, b],
        outputs=[c],
        splits=splits,
        core_order=draw(st.permutations(dims)),
        unit="pt",
    )


@st.composite
def topk_specs(draw: st.DrawFn, name: str) -> OperationSpec:
    """The k largest along a dim outside the stick; positions as int32 or as numbers."""
    wide = draw(st.booleans())
    source_format = "IEEE_FP32" if wide else "SEN169_FP16"
    grid = draw(grids(64, min_rank=2, max_rank=3))
    reduced = draw(st.sampled_from([d for d in grid.dims if d != grid.stick]))
    count = draw(st.integers(2, 9))
    extents = {**grid.extents, reduced: count, "kj": draw(st.integers(1, count))}
    splits = {**grid.splits, reduced: 1, "kj": 1}
    grid = Grid(extents, splits, grid.stick, 64)
    index_format = draw(st.sampled_from(["IEEE_INT32", source_format]))
    target_format = index_format if name == "topkindex" else source_format
    return OperationSpec(
        name=name,
        extents=extents,
        inputs=[draw(_plain(grid, 0, "kj", source_format))],
        outputs=[draw(_plain(grid, 1, reduced, target_format))],
        splits=splits,
        data_format=source_format,
    )


@st.composite
def _plain(draw: st.DrawFn, grid: Grid, operand: int, absent: str, data_format: str) -> OperandSpec:
    spec = draw(tensors(grid, operand, [absent], data_format, False))
    return replace(spec, dims=tuple(d for d in spec.dims if d != absent), scale={})
