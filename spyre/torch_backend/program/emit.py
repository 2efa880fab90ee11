"""Every kind of `OpSpec` as the description of an SDSC.

Gathers are `identity` through an index tensor (SDSC reference §6.4):
``output[a, i, b] = table[a, index[i], b]``. The dims of the index stand in the output where the
table has its rows. An index that lacks dims of the output is the same all along them; one that has
the output's lane dim picks every lane by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from spyre.dtypes import STICK_BYTES
from spyre.layout import DeviceView, Factor
from spyre.mlir.builder import BufferAddress, OperandSpec, OperationSpec
from spyre.mlir.operation import MASK_CONSTANT, Indirection
from spyre.torch_backend.program.emitter import (
    Emitter,
    IterationSpace,
    TensorOperand,
    lane_index,
    unit_lane,
)
from spyre.torch_backend.program.iteration import IterationDim, common_iteration
from spyre.torch_backend.program.op_spec import (
    DeviceOp,
    LoweringError,
    OpFunction,
    OpKind,
    Value,
    float_bits,
)

INDEX_FORMAT = "SENUINT32"
"""Index words; those of int32 and int64 tensors have the same bits."""
INDEX_STICK = 32
_TABLE, _INDEX, _OUTPUT = 0, 1, 2


def gather_space(spec: DeviceOp, place: Callable[[Value], BufferAddress]) -> IterationSpace:
    """``dims``: the table's dim of rows. The index has the output's rank, with size 1 (or repeated
    elements) along dims it does not depend on; the table has that rank too.
    """
    table, index = spec.inputs
    (along,) = spec.dims
    output = spec.written
    row_pitch, rows = _rows_of(table, along)
    sizes = output.sizes
    stepped = _stepped(table.view, along, sizes[along], row_pitch)
    views = [stepped.expanded(sizes), index.expanded(sizes).view, output.view]
    dims = common_iteration(views, [int(k == along) for k in range(len(sizes))])
    if sizes[along] == 1:
        dims.append(single_row(row_pitch))
    return IterationSpace(dims, views, [place(table), place(index), place(output)], None, rows)


def single_row(pitch_bytes: int) -> IterationDim:
    """The dim of rows of a gather that picks one, from a table of this pitch."""
    one = Factor(1, STICK_BYTES)
    return IterationDim(1, (Factor(1, pitch_bytes), one, one), 1)


def emit_gather(spec: OpFunction | DeviceOp, walk: IterationSpace) -> OperationSpec:
    """The SDSC of a gather; the one dim of role 1 steps through the index where there is one row of
    the output per element.
    """
    dims = list(walk.dims)
    if sum(dim.role == 1 for dim in dims) > 1:
        raise LoweringError("rows of a gather in several steps")
    moved = next(k for k, dim in enumerate(dims) if dim.role == 1)
    lane = lane_index(dims, _OUTPUT)
    if lane < 0:
        stick, none = Factor(1, STICK_BYTES, True), Factor(1, 0)
        dims.append(IterationDim(1, (stick, none, stick)))
        lane = len(dims) - 1
    index_lane = lane_index(dims, _INDEX)
    if index_lane < 0:
        index_lane = moved
    emitter = Emitter(dims, _multiples(dims, lane, index_lane, walk), division=walk.division)
    return _gather_operation(spec.name, emitter, walk, (lane, index_lane, moved))


def _multiples(
    dims: Sequence[IterationDim], lane: int, index_lane: int, walk: IterationSpace
) -> dict[int, int]:
    multiples = {lane: walk.views[_OUTPUT].elements_per_stick}
    if index_lane != lane and dims[index_lane].extent > INDEX_STICK:
        if dims[index_lane].extent % INDEX_STICK:
            raise LoweringError("an index in sticks that are not whole")
        multiples[index_lane] = INDEX_STICK
    return multiples


def _gather_operation(
    name: str, emitter: Emitter, walk: IterationSpace, lanes: tuple[int, int, int]
) -> OperationSpec:
    """``lanes``: dims along the sticks of the output and of the index, and the dim of rows."""
    lane, index_lane, moved = lanes
    views, bases = walk.views, walk.bases
    rows = (moved, walk.rows)
    source = emitter.tensor(TensorOperand(_TABLE, views[_TABLE], bases[_TABLE], lane, "", rows))
    words = emitter.tensor(TensorOperand(_INDEX, views[_INDEX], bases[_INDEX], index_lane))
    target = emitter.tensor(TensorOperand(_OUTPUT, views[_OUTPUT], bases[_OUTPUT], lane))
    sizes = {emitter.names[moved]: 1}
    source = replace(source, indirection=Indirection.VALUE, max_dim_sizes=sizes, role="VALUE")
    words = replace(
        words, indirection=Indirection.INDEX, data_format=INDEX_FORMAT, role="KERNEL_IDX"
    )
    return emitter.operation(name, [source], [target], index_inputs=[words])


def _rows_of(table: Value, along: int) -> tuple[int, int]:
    """Bytes from row to row, and their number."""
    factors = table.view.dims[along]
    if not factors:
        return STICK_BYTES, 1
    if len(factors) > 1 or factors[0].lane:
        raise LoweringError(f"rows along {factors}")
    return factors[0].pitch_bytes, factors[0].extent


def _stepped(view: DeviceView, along: int, extent: int, pitch: int) -> DeviceView:
    """The table with as many rows as the output has."""
    rows = (Factor(extent, pitch),) if extent > 1 else ()
    return replace(view, dims=(*view.dims[:along], rows, *view.dims[along + 1 :]))


PlaceOf = Callable[[Value], BufferAddress]
MATMUL_STICK = 64
_NEUTRAL = {"max": float("-inf"), "min": float("inf"), "prod": 1.0}
"""What masked elements count as, where it is not 0."""


def emit(spec: DeviceOp, place: PlaceOf) -> OperationSpec:
    """The SDSC of ``spec``; LoweringError when its operands' sticks do not go together."""
    return emit_over(spec, iteration_space(spec, place))


def iteration_space(spec: DeviceOp, place: PlaceOf) -> IterationSpace:
    """The tensors of ``spec`` over common dims. LoweringError as of `common_iteration`."""
    return _SPACES[spec.kind](spec, place)


def emit_over(spec: OpFunction | DeviceOp, walk: IterationSpace) -> OperationSpec:
    """The SDSC of an operation over given dims.

    Roles of dims: of a reduction 1 for what it reduces; of a matmul 0 for batches, 1 for M, 2 for
    N, 3 for K; of a top-k 1 for what it goes along, 2 for k; of a gather 1 for the output's dim of
    rows; else 0. LoweringError as of `emit`, UnevenDivision for divisions that do not fit.
    """
    return _EMITTERS[spec.kind](spec, walk)


def _pointwise_space(spec: DeviceOp, place: PlaceOf) -> IterationSpace:
    output = spec.written
    values = [*(v.expanded(output.sizes) for v in spec.inputs), output]
    views = [v.view for v in values]
    return IterationSpace(common_iteration(views), views, [place(v) for v in values])


def _pointwise(spec: OpFunction | DeviceOp, walk: IterationSpace) -> OperationSpec:
    dims, last = list(walk.dims), len(walk.views) - 1
    lane = lane_index(dims, last)
    if lane < 0:
        dims.append(unit_lane(len(walk.views)))
        lane = len(dims) - 1
    multiple = spec.lane_multiple or max(view.elements_per_stick for view in walk.views)
    emitter = Emitter(dims, {lane: multiple}, division=walk.division)
    tensors = _tensors(emitter, walk, [lane] * (last + 1))
    constants, masks = dict(spec.constants), {}
    name = emitter.names[lane]
    if spec.mask_from and (padding := emitter.extents[name] - spec.mask_from):
        constants[MASK_CONSTANT] = 0
        masks[name] = [(spec.mask_from, padding)]
    return emitter.operation(
        spec.name, tensors[:-1], tensors[-1:], constants=constants, masks=masks
    )


def _tensors(
    emitter: Emitter, walk: IterationSpace, lanes: Sequence[int], roles: Sequence[str] = ()
) -> list[OperandSpec]:
    roles = roles or [""] * len(lanes)
    operands = zip(walk.views, walk.bases, lanes, roles, strict=True)
    return [emitter.tensor(TensorOperand(k, *operand)) for k, operand in enumerate(operands)]


def _reduction_space(spec: DeviceOp, place: PlaceOf) -> IterationSpace:
    (source,) = spec.inputs
    roles = [int(k in spec.dims) for k in range(len(source.sizes))]
    views = [source.view, spec.output.expanded(source.sizes).view]
    return IterationSpace(
        common_iteration(views, roles), views, [place(source), place(spec.output)]
    )


def _reduction(spec: OpFunction | DeviceOp, walk: IterationSpace) -> OperationSpec:
    dims = list(walk.dims)
    lane = lane_index(dims, 0)
    if lane < 0:
        dims.append(unit_lane(2))
        lane = len(dims) - 1
    stick = walk.views[0].elements_per_stick
    emitter = Emitter(dims, {lane: stick}, division=walk.division)
    tensors = _tensors(emitter, walk, [lane, lane])
    constants, masks = dict(spec.constants), {}
    name, extent = emitter.names[lane], dims[lane].extent
    over_lanes = dims[lane].role == 1
    if over_lanes and (padding := emitter.extents[name] - extent):
        masks[name] = [(extent, padding)]
        constants[MASK_CONSTANT] = float_bits(_NEUTRAL.get(spec.name, 0.0))
    undivided = [k for k, dim in enumerate(dims) if dim.role]
    full = spec.name if over_lanes else f"{spec.name}nonstick"
    return emitter.operation(
        full, tensors[:1], tensors[1:], constants=constants, masks=masks, undivided=undivided
    )


def _matmul_space(spec: DeviceOp, place: PlaceOf) -> IterationSpace:
    """``output[.., M, N] = left[.., M, K] · right[.., K, N]`` of equal ranks."""
    left, right = spec.inputs
    rank = len(spec.output.sizes)
    sizes = (*spec.output.sizes, left.sizes[-1])
    values = (
        left.unsqueezed(rank - 1).expanded(sizes),
        right.transposed(rank - 2, rank - 1).unsqueezed(rank - 2).expanded(sizes),
        spec.output.unsqueezed(rank).expanded(sizes),
    )
    views = [v.view for v in values]
    dims = common_iteration(views, [*([0] * (rank - 2)), 1, 2, 3])
    return IterationSpace(dims, views, [place(v) for v in values])


def _matmul(spec: OpFunction | DeviceOp, walk: IterationSpace) -> OperationSpec:
    dims = list(walk.dims)
    inner, column = _matmul_lanes(dims)
    multiples = {column: MATMUL_STICK, inner: MATMUL_STICK}
    emitter = Emitter(dims, multiples, division=walk.division)
    lanes, roles = (inner, column, column), ("INPUT", "KERNEL", "OUTPUT")
    tensors = _tensors(emitter, walk, lanes, roles)
    return emitter.operation(spec.name, tensors[:2], tensors[2:], undivided=[inner], unit="pt")


def _matmul_lanes(dims: list[IterationDim]) -> tuple[int, int]:
    """Indices of the dims along the lanes of left (K) and right (N), added where of extent 1."""
    stick, row, none = Factor(1, STICK_BYTES, True), Factor(1, STICK_BYTES), Factor(1, 0)
    inner, column = lane_index(dims, 0), lane_index(dims, 1)
    if column < 0:
        dims.append(IterationDim(1, (none, stick, stick), 2))
        column = len(dims) - 1
    if inner < 0:
        dims.append(IterationDim(1, (stick, row, none), 3))
        inner = len(dims) - 1
    if dims[inner].role != 3 or dims[column].role != 2:
        raise LoweringError("a matmul takes sticks along K and along N")
    return inner, column


def _restickify_space(spec: DeviceOp, place: PlaceOf) -> IterationSpace:
    values = (*spec.inputs, spec.output)
    views = [v.view for v in values]
    return IterationSpace(common_iteration(views), views, [place(v) for v in values])


def _restickify(spec: OpFunction | DeviceOp, walk: IterationSpace) -> OperationSpec:
    dims = list(walk.dims)
    lanes = [lane_index(dims, 0), lane_index(dims, 1)]
    for k in (0, 1):
        if lanes[k] < 0:
            lanes[k] = len(dims)
            stick, row = Factor(1, STICK_BYTES, True), Factor(1, STICK_BYTES)
            dims.append(IterationDim(1, (stick, row) if k == 0 else (row, stick)))
    multiples = dict.fromkeys(lanes, walk.views[0].elements_per_stick)
    emitter = Emitter(dims, multiples, exact=True, division=walk.division)
    tensors = _tensors(emitter, walk, lanes)
    return emitter.operation(spec.name, tensors[:1], tensors[1:])


def _topk_space(spec: DeviceOp, place: PlaceOf) -> IterationSpace:
    """``output``: k elements along ``dims[0]``, which no stick runs along."""
    (source,), (along,) = spec.inputs, spec.dims
    rank = len(source.sizes)
    sizes = [*source.sizes, spec.output.sizes[along]]
    order = [rank if k == along else k for k in range(rank)]
    ranked = spec.output.unsqueezed(rank).permuted([*order, along])
    views = [source.unsqueezed(rank).expanded(sizes).view, ranked.expanded(sizes).view]
    roles = [1 if k == along else 2 if k == rank else 0 for k in range(rank + 1)]
    return IterationSpace(
        common_iteration(views, roles), views, [place(source), place(spec.output)]
    )


def _topk(spec: OpFunction | DeviceOp, walk: IterationSpace) -> OperationSpec:
    dims = [*walk.dims, *_missing_roles(walk.dims)]
    lane = lane_index(dims, 0)
    if lane < 0:
        dims.append(unit_lane(2))
        lane = len(dims) - 1
    lanes = max(view.elements_per_stick for view in walk.views)
    emitter = Emitter(dims, {lane: lanes}, division=walk.division)
    tensors = _tensors(emitter, walk, [lane, lane])
    undivided = [k for k, dim in enumerate(dims) if dim.role]
    return emitter.operation(spec.name, tensors[:1], tensors[1:], undivided=undivided)


def _missing_roles(dims: Sequence[IterationDim]) -> list[IterationDim]:
    """The reduced dim and k where they are of extent 1."""
    row, none = Factor(1, STICK_BYTES), Factor(1, 0)
    present = {dim.role for dim in dims}
    pairs = {1: (row, none), 2: (none, row)}
    return [IterationDim(1, pair, role) for role, pair in pairs.items() if role not in present]


_SPACES: dict[OpKind, Callable[[DeviceOp, PlaceOf], IterationSpace]] = {
    OpKind.POINTWISE: _pointwise_space,
    OpKind.REDUCTION: _reduction_space,
    OpKind.MATMUL: _matmul_space,
    OpKind.RESTICKIFY: _restickify_space,
    OpKind.TOPK: _topk_space,
    OpKind.GATHER: gather_space,
}
_EMITTERS: dict[OpKind, Callable[[OpFunction | DeviceOp, IterationSpace], OperationSpec]] = {
    OpKind.POINTWISE: _pointwise,
    OpKind.REDUCTION: _reduction,
    OpKind.MATMUL: _matmul,
    OpKind.RESTICKIFY: _restickify,
    OpKind.TOPK: _topk,
    OpKind.GATHER: emit_gather,
}
