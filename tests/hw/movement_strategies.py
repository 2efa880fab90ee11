"""Random data movement: identity, conversions, restickify, gather and scatter, all legal."""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec.structs import replace

from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.operation.operation import Indirection, Operation
from tests.hw.harness import region
from tests.hw.strategies import Grid, fits_lx, grids, tensors


@st.composite
def copy_specs(draw: st.DrawFn) -> OperationSpec:
    """identity: any 16- or 32-bit format, the source may lack any dims (broadcast)."""
    data_format = draw(st.sampled_from(["SEN169_FP16", "IEEE_FP32", "IEEE_INT32"]))
    grid = draw(grids(64 if data_format == "SEN169_FP16" else 32))
    lx = None if fits_lx(grid, 4) else False
    absent = sorted(draw(st.sets(st.sampled_from(grid.dims), max_size=3)))
    return OperationSpec(
        name="identity",
        extents=grid.extents,
        inputs=[draw(tensors(grid, 0, absent, data_format, lx))],
        outputs=[draw(tensors(grid, 1, (), data_format, lx))],
        splits=grid.splits,
        core_order=draw(st.permutations(grid.dims)),
        data_format=data_format,
    )


@st.composite
def conversion_specs(draw: st.DrawFn, name: str, lx: bool | None) -> OperationSpec:
    """dl16tofp32 or fp32todl16 over groups of 64 elements; in LX only if ``lx``."""
    grid = draw(grids())
    lx = None if lx and fits_lx(grid, 8) else False
    formats = ["SEN169_FP16", "IEEE_FP32"]
    source, target = formats if name == "dl16tofp32" else formats[::-1]
    return OperationSpec(
        name=name,
        extents=grid.extents,
        inputs=[draw(tensors(grid, 0, (), source, lx))],
        outputs=[draw(tensors(grid, 1, (), target, lx))],
        splits=grid.splits,
        core_order=draw(st.permutations(grid.dims)),
        data_format=source,
    )


@st.composite
def restickify_specs(draw: st.DrawFn) -> OperationSpec:
    """Both stick dims rounded up; memory may be shorter, as a gap or as deviceDimSizes_."""
    data_format = draw(st.sampled_from(["SEN169_FP16", "IEEE_FP32"]))
    lanes = 64 if data_format == "SEN169_FP16" else 32
    grid = draw(grids(lanes, max_rank=4, min_rank=2))
    other = draw(st.sampled_from([d for d in grid.dims if d != grid.stick]))
    extents = {**grid.extents, other: grid.splits[other] * lanes * draw(st.integers(1, 2))}
    missing = {d: draw(st.integers(0, lanes - 1)) for d in (grid.stick, other)}
    padded = draw(st.booleans())
    splits = {d: 1 if padded and d in missing else s for d, s in grid.splits.items()}
    extents = {d: e // grid.splits[d] * splits[d] for d, e in extents.items()}
    grid = Grid(extents, splits, grid.stick, lanes)
    lx = None if fits_lx(grid, 4) and not padded else False
    source = draw(tensors(grid, 0, (), data_format, lx, gaps=not padded))
    target = draw(tensors(grid, 1, (), data_format, lx, stick=other, gaps=not padded))
    source, target = (_without_doubtful_gap(grid, t) for t in (source, target))
    if padded:
        as_gap = draw(st.booleans())
        source = _shortened(grid, source, other, missing[other], as_gap)
        target = _shortened(grid, target, grid.stick, missing[grid.stick], as_gap)
    return OperationSpec(
        name="ReStickifyOpHBM",
        extents=extents,
        inputs=[source],
        outputs=[target],
        splits=splits,
        data_format=data_format,
    )


def _without_doubtful_gap(grid: Grid, tensor: OperandSpec) -> OperandSpec:
    """§7: beside whole sticks, a gap below a stick would mean padding, not a slice."""
    doubtful = [
        d for d in tensor.gap if d != tensor.stick[0][0] and not grid.extents[d] % grid.lanes
    ]
    return replace(tensor, gap={}) if doubtful else tensor


def _shortened(
    grid: Grid, tensor: OperandSpec, dim: str, missing: int, as_gap: bool
) -> OperandSpec:
    """``tensor`` whose memory ends ``missing`` elements before the iteration along ``dim``."""
    if as_gap:
        return replace(tensor, gap={dim: missing} if missing else {})
    sizes = {d: grid.extents[d] - (missing if d == dim else 0) for d in tensor.dims}
    return replace(tensor, device_dim_sizes=sizes)


@st.composite
def gathers(draw: st.DrawFn, scatter: bool = False) -> tuple[Operation, int, int]:
    """(operation, rows of the table, bytes of the table): rows, or single lanes of rows.

    The index runs over one or two dims; with the stick dim among them every lane has its own.
    """
    data_format = draw(st.sampled_from(["SEN169_FP16", "IEEE_FP32"]))
    lanes = 64 if data_format == "SEN169_FP16" else 32
    per_lane = draw(st.booleans())
    steps = {
        "mb": draw(st.sampled_from([1, 3, 8, 20, 32, 45, 64, 100])),
        "out": draw(st.integers(1, 3)) * lanes,
    }
    if draw(st.booleans()):
        steps["x"] = draw(st.integers(1, 4))
    splits = {d: 1 for d in steps}
    splits["out"] = draw(st.sampled_from([1, 2])) if "x" not in steps else 1
    if steps["mb"] > 45:
        splits["mb"] = 2
    if "x" in steps:
        splits["x"] = draw(st.sampled_from([1, 3]))
    extents = {d: n * (splits[d] if d != "mb" else 1) for d, n in steps.items()}
    grid = Grid(extents, splits, "out", lanes)
    indexed = ["mb"]
    rows = draw(st.integers(1, 9))
    value = OperandSpec(
        dims=("out", "x", "mb") if "x" in extents else ("out", "mb"),
        stick=(("out", lanes),),
        base=region(2 if scatter else 0),
        data_format=data_format,
        role="VALUE",
        max_dim_sizes={"mb": 1},
        indirection=Indirection.VALUE,
    )
    row_bytes = extents["out"] // lanes * 128 * extents.get("x", 1)
    index_dims = [*indexed, *(["out"] if per_lane else [])]
    index = OperandSpec(
        dims=tuple(draw(st.permutations(index_dims))),
        stick=(("out" if per_lane else "mb", 32),),
        base=region(1),
        data_format="SENUINT32",
        role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )
    plain = replace(
        draw(tensors(grid, 0 if scatter else 2, (), data_format, False)),
        indirection=Indirection.NONE,
    )
    spec = OperationSpec(
        name="identity",
        extents=extents,
        inputs=[plain if scatter else value],
        outputs=[value if scatter else plain],
        index_inputs=[index],
        splits=splits,
        data_format=data_format,
    )
    return build_operation(spec), rows, rows * row_bytes


@st.composite
def paged(draw: st.DrawFn, scatter: bool = False) -> tuple[Operation, int, int]:
    """(operation, indices there are, bytes of the table): an index picks a page of a table.

    The table is page by page, one page a row of sticks, or one tensor of rows in which pages begin
    at multiples of their size.
    """
    data_format = draw(st.sampled_from(["SEN169_FP16", "IEEE_FP32"]))
    lanes = 64 if data_format == "SEN169_FP16" else 32
    page, pages, sticks = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    rows = draw(st.integers(1, page))
    splits = {"x": draw(st.sampled_from([1, 1, 2])), "mb": 1, "out": draw(st.sampled_from([1, 2]))}
    if rows % 2 == 0:
        splits["mb"] = draw(st.sampled_from([1, 2]))
    extents = {"x": 2 * draw(st.sampled_from([1, 3, 16])), "mb": rows}
    extents["out"] = sticks * lanes * splits["out"]
    kind = draw(st.sampled_from(["page by page", "rows", "rows outermost", "sticks"]))
    maxima, sizes, order, page_bytes = {"mb": page}, {}, ("mb", "out"), page * 128
    table_bytes = pages * page_bytes * (extents["out"] // lanes)
    if kind == "page by page":
        maxima, order = {"mb": page, "x": 1}, ("mb", "out", "x")
    elif kind == "rows":
        sizes = {"mb": pages * page, "out": extents["out"]}
    elif kind == "rows outermost":
        order = ("out", "mb")
    else:
        maxima, order, extents["mb"], splits["mb"] = {"out": extents["out"]}, ("out",), 1, 1
        table_bytes = pages * extents["out"] // lanes * 128
    value = OperandSpec(
        dims=order,
        stick=(("out", lanes),),
        base=region(2 if scatter else 0),
        data_format=data_format,
        role="VALUE",
        max_dim_sizes=maxima,
        device_dim_sizes=sizes,
        indirection=Indirection.VALUE,
    )
    index = OperandSpec(
        dims=("x",),
        stick=(("x", 32),),
        base=region(1),
        data_format="SENUINT32",
        role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )
    grid = Grid(extents, splits, "out", lanes)
    plain = replace(
        draw(tensors(grid, 0 if scatter else 2, (), data_format, False)),
        indirection=Indirection.NONE,
    )
    spec = OperationSpec(
        name="identity",
        extents=extents,
        inputs=[plain if scatter else value],
        outputs=[value if scatter else plain],
        index_inputs=[index],
        splits=splits,
        data_format=data_format,
    )
    return build_operation(spec), pages, table_bytes
