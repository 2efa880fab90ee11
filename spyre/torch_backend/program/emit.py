"""Emission of every kind of `DeviceOp` as the description of an SDSC.

Gathers are `identity` through an index tensor (SDSC reference §6.4):
``output[a, i, b] = table[a, index[i], b]``. In the output, the dims of the index replace the row
dim of the table. The index is broadcast along output dims it lacks; if it has the output's lane
dim, it selects each lane separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES
from spyre.layout import DeviceView, Factor
from spyre.mlir.builder import BufferAddress, OperandSpec, OperationSpec
from spyre.mlir.operation import INDEX_LIMIT_CONSTANT, MASK_CONSTANT, OVERFLOW_CONSTANT, Indirection
from spyre.torch_backend.program.emitter import (
    Bases,
    CoreDivision,
    IteratedOp,
    IterationDim,
    Outline,
    TensorOperand,
    common_iteration,
    lane_index,
    unit_lane,
)
from spyre.torch_backend.program.op_spec import DeviceOp, LoweringError, OpKind, Value, float_bits

INDEX_FORMAT = "SENUINT32"
"""Index words; those of int32 and int64 tensors have the same bits."""
INDEX_STICK = 32
MATMUL_STICK = 64
PACKED_MATMUL = "batchmatmulfp8"
"""A matmul whose factors hold two 8-bit floats along K in every element of 16 bits."""
AddressOf = Callable[[Value], BufferAddress]
_TABLE, _INDEX, _OUTPUT = 0, 1, 2
_STICK, _ROW, _NONE = Factor(1, STICK_BYTES, True), Factor(1, STICK_BYTES), Factor(1, 0)
"""Of a dim of extent 1: along the lanes, along rows, and of an operand without the dim."""
_NEUTRAL = {"max": float("-inf"), "min": float("inf"), "prod": 1.0}
"""Value of masked elements, if not 0."""


def emit(spec: DeviceOp, address: AddressOf) -> OperationSpec:
    """The SDSC of ``spec``; LoweringError if the sticks of its operands do not match."""
    return emit_over(iterated(spec), [address(value) for value in (*spec.inputs, spec.written)])


def require_sdsc(spec: DeviceOp) -> None:
    """Raise LoweringError if `emit` would."""
    outline = outline_of(iterated(spec))
    for operand in outline.operands:
        outline.stored(operand)


def iterated(spec: DeviceOp, joined: bool = True) -> IteratedOp:
    """``spec`` over common dims. LoweringError as of `common_iteration`.

    If not ``joined``, host dims are kept separate by using their number as role; gathers and top-k
    always use their specific roles.
    """
    views, roles = _WALKS[spec.kind](spec)
    if not joined and spec.kind not in (OpKind.TOPK, OpKind.GATHER):
        roles = range(len(views[0].sizes))
    dims, rows = common_iteration(views, roles), 0
    if spec.kind is OpKind.GATHER:
        row_pitch, rows = _rows_of(spec.inputs[_TABLE], spec.dims[0])
        if spec.written.sizes[spec.dims[0]] == 1:
            # the row dim of a single row, from a table of this pitch
            dims.append(IterationDim(1, (Factor(1, row_pitch), _ROW, _ROW), 1))
    formats, more = [view.device_format for view in views], (spec.mask_from, spec.lane_multiple)
    return IteratedOp(spec.kind, spec.name, dims, formats, spec.constants, *more, rows)


def emit_over(op: IteratedOp, bases: Bases, division: CoreDivision | None = None) -> OperationSpec:
    """The SDSC of an operation over given dims, its tensors at ``bases``.

    Roles of dims: reduction: 1 for reduced dims; matmul: 0 for batches, 1 for M, 2 for N, 3 for K;
    top-k: 1 for the searched dim, 2 for k; gather: 1 for the output's row dim; else 0.
    ``division``: over cores, if given in advance. LoweringError as of `emit`, UnevenDivision for
    divisions that do not fit.
    """
    outline = outline_of(op, division)
    pairs = zip(outline.operands, bases, strict=True)
    *inputs, output = [outline.tensor(operand, base) for operand, base in pairs]
    index_inputs: list[OperandSpec] = []
    if op.kind is OpKind.GATHER:
        (table, index), rows = inputs, outline.operands[_TABLE].rows
        assert rows is not None
        sizes = {outline.names[rows[0]]: 1}
        inputs = [replace(table, indirection=Indirection.VALUE, max_dim_sizes=sizes)]
        index_inputs = [replace(index, indirection=Indirection.INDEX, data_format=INDEX_FORMAT)]
    unit = "pt" if op.kind is OpKind.MATMUL else "sfp"
    operation = outline.operation(inputs, [output], unit, index_inputs)
    return _unpacked(operation) if op.name == PACKED_MATMUL else operation


def _unpacked(operation: OperationSpec) -> OperationSpec:
    """A `PACKED_MATMUL` with K counted in 8-bit elements."""
    ((inner, lanes),) = operation.inputs[0].stick
    sticks = (((inner, 2 * lanes),), ((inner, 2), *operation.inputs[1].stick))
    factors = [
        replace(
            factor,
            stick=stick,
            data_format="SEN143_FP8",
            device_dim_sizes={
                dim: size * (2 if dim == inner else 1)
                for dim, size in factor.device_dim_sizes.items()
            },
        )
        for factor, stick in zip(operation.inputs, sticks, strict=True)
    ]
    extents = {**operation.extents, inner: 2 * operation.extents[inner]}
    return replace(operation, extents=extents, inputs=factors, data_format="SEN143_FP8")


# --- tensors over the dims of the iteration -----------------------------------------------------


_Walk = tuple[Sequence[DeviceView], Sequence[int] | None]
"""The tensors of an operation as views of equal sizes, the output last, and roles of their dims."""


def _pointwise_walk(spec: DeviceOp) -> _Walk:
    output = spec.written
    return [*(v.expanded(output.sizes).view for v in spec.inputs), output.view], None


def _reduction_walk(spec: DeviceOp) -> _Walk:
    (source,) = spec.inputs
    roles = [int(k in spec.dims) for k in range(len(source.sizes))]
    return [source.view, spec.output.expanded(source.sizes).view], roles


def _matmul_walk(spec: DeviceOp) -> _Walk:
    """``output[.., M, N] = left[.., M, K] · right[.., K, N]`` of equal ranks."""
    left, right = spec.inputs
    rank = len(spec.output.sizes)
    sizes = (*spec.output.sizes, left.sizes[-1])
    values = (
        left.unsqueezed(rank - 1).expanded(sizes),
        right.transposed(rank - 2, rank - 1).unsqueezed(rank - 2).expanded(sizes),
        spec.output.unsqueezed(rank).expanded(sizes),
    )
    return [v.view for v in values], [*([0] * (rank - 2)), 1, 2, 3]


def _topk_walk(spec: DeviceOp) -> _Walk:
    """``output``: k elements along ``dims[0]``, which is not the lane dim."""
    (source,), (along,) = spec.inputs, spec.dims
    if len(source.view.dims[along]) > 1:
        raise LoweringError("a top-k along a dim without a single pitch")
    rank = len(source.sizes)
    sizes = [*source.sizes, spec.output.sizes[along]]
    order = [rank if k == along else k for k in range(rank)]
    ranked = spec.output.unsqueezed(rank).permuted([*order, along])
    views = [source.unsqueezed(rank).expanded(sizes).view, ranked.expanded(sizes).view]
    return views, [1 if k == along else 2 if k == rank else 0 for k in range(rank + 1)]


def _gather_walk(spec: DeviceOp) -> _Walk:
    """``dims``: the table's dim of rows. The index has the output's rank, with size 1 (or repeated
    elements) along dims it does not depend on; the table has that rank too.
    """
    table, index = spec.inputs
    (along,) = spec.dims
    output = spec.written
    row_pitch, _ = _rows_of(table, along)
    sizes = output.sizes
    # the table with as many rows as the output has
    rows = (Factor(sizes[along], row_pitch),) if sizes[along] > 1 else ()
    dims = (*table.view.dims[:along], rows, *table.view.dims[along + 1 :])
    stepped = replace(table.view, dims=dims)
    views = [stepped.expanded(sizes), index.expanded(sizes).view, output.view]
    return views, [int(k == along) for k in range(len(sizes))]


def _rows_of(table: Value, along: int) -> tuple[int, int]:
    """Bytes from row to row, and their number."""
    factors = table.view.dims[along]
    if not factors:
        return STICK_BYTES, 1
    if len(factors) > 1 or factors[0].lane:
        raise LoweringError(f"rows along {factors}")
    return factors[0].pitch_bytes, factors[0].extent


_WALKS: dict[OpKind, Callable[[DeviceOp], _Walk]] = {
    OpKind.POINTWISE: _pointwise_walk,
    OpKind.REDUCTION: _reduction_walk,
    OpKind.MATMUL: _matmul_walk,
    OpKind.RESTICKIFY: lambda spec: ([v.view for v in (*spec.inputs, spec.output)], None),
    OpKind.TOPK: _topk_walk,
    OpKind.GATHER: _gather_walk,
}


# --- outlines -----------------------------------------------------------------------------------


def outline_of(op: IteratedOp, division: CoreDivision | None = None) -> Outline:
    """The dims of an SDSC and how its tensors walk them; LoweringError as of `emit`."""
    return _OUTLINES[op.kind](op, division)


def _lane(dims: list[IterationDim], number: int, added: IterationDim) -> int:
    """Index of the lane dim of operand ``number``; ``added`` to the dims if it has none."""
    lane = lane_index(dims, number)
    if lane < 0:
        lane = len(dims)
        dims.append(added)
    return lane


def _operands(
    op: IteratedOp, lanes: Sequence[int], roles: Sequence[str] = ()
) -> list[TensorOperand]:
    roles = roles or [""] * len(lanes)
    columns = zip(op.formats, lanes, roles, strict=True)
    return [TensorOperand(k, *column) for k, column in enumerate(columns)]


def _pointwise(op: IteratedOp, division: CoreDivision | None) -> Outline:
    dims, last = list(op.dims), len(op.formats) - 1
    lane = _lane(dims, last, unit_lane(len(op.formats)))
    multiple = op.lane_multiple or op.most_lanes
    operands = _operands(op, [lane] * (last + 1))
    constants = dict(op.constants)
    masks: dict[str, list[tuple[int, int]]] = {}
    outline = Outline(
        op.name, dims, {lane: multiple}, operands, constants, masks, division=division
    )
    name, known = outline.names[lane], op.mask_from
    if OVERFLOW_CONSTANT in constants:
        known = dims[lane].extent  # later lanes hold no results
    if known and (padding := outline.extents[name] - known):
        constants[MASK_CONSTANT] = 0
        masks[name] = [(known, padding)]
    return outline


def _reduction(op: IteratedOp, division: CoreDivision | None) -> Outline:
    dims = list(op.dims)
    lane = _lane(dims, 0, unit_lane(2))
    over_lanes, extent = dims[lane].role == 1, dims[lane].extent
    name = op.name if over_lanes else f"{op.name}nonstick"
    multiples, operands = {lane: op.lanes(0)}, _operands(op, [lane, lane])
    constants = dict(op.constants)
    masks: dict[str, list[tuple[int, int]]] = {}
    # the total of a vector is divided over cores, as torch-spyre does
    whole = [k for k, dim in enumerate(dims) if dim.role and len(dims) > 1]
    outline = Outline(name, dims, multiples, operands, constants, masks, whole, division=division)
    lanes = outline.names[lane]
    if over_lanes and (padding := outline.extents[lanes] - extent):
        masks[lanes] = [(extent, padding)]
        constants[MASK_CONSTANT] = float_bits(_NEUTRAL.get(op.name, 0.0))
    return outline


def _matmul(op: IteratedOp, division: CoreDivision | None) -> Outline:
    dims = list(op.dims)
    inner, column = _matmul_lanes(dims)
    multiples = {column: MATMUL_STICK, inner: MATMUL_STICK}
    operands = _operands(op, (inner, column, column), ("INPUT", "KERNEL", "OUTPUT"))
    return Outline(op.name, dims, multiples, operands, undivided=[inner], division=division)


def _matmul_lanes(dims: list[IterationDim]) -> tuple[int, int]:
    """Indices of the lane dims of left (K) and right (N); dims of extent 1 are added."""
    column = _lane(dims, 1, IterationDim(1, (_NONE, _STICK, _STICK), 2))
    inner = _lane(dims, 0, IterationDim(1, (_STICK, _ROW, _NONE), 3))
    if dims[inner].role != 3 or dims[column].role != 2:
        raise LoweringError("a matmul takes sticks along K and along N")
    return inner, column


def _restickify(op: IteratedOp, division: CoreDivision | None) -> Outline:
    dims = list(op.dims)
    added = (IterationDim(1, (_STICK, _ROW)), IterationDim(1, (_ROW, _STICK)))
    lanes = [_lane(dims, k, dim) for k, dim in enumerate(added)]
    multiples = dict.fromkeys(lanes, op.lanes(0))
    return Outline(op.name, dims, multiples, _operands(op, lanes), exact=True, division=division)


def _topk(op: IteratedOp, division: CoreDivision | None) -> Outline:
    dims = [*op.dims, *_missing_roles(op.dims)]
    lane = _lane(dims, 0, unit_lane(2))
    multiples, operands = {lane: op.most_lanes}, _operands(op, [lane, lane])
    whole = [k for k, dim in enumerate(dims) if dim.role]
    return Outline(op.name, dims, multiples, operands, undivided=whole, division=division)


def _missing_roles(dims: Sequence[IterationDim]) -> list[IterationDim]:
    """The searched dim and k, if they have extent 1 and so are missing."""
    present = {dim.role for dim in dims}
    pairs = {1: (_ROW, _NONE), 2: (_NONE, _ROW)}
    return [IterationDim(1, pair, role) for role, pair in pairs.items() if role not in present]


def _gather(op: IteratedOp, division: CoreDivision | None) -> Outline:
    """A gather: its only dim of role 1 is the dim of the index that selects output rows."""
    dims = list(op.dims)
    if sum(dim.role == 1 for dim in dims) > 1:
        raise LoweringError("rows of a gather in several steps")
    moved = next(k for k, dim in enumerate(dims) if dim.role == 1)
    lane = _lane(dims, _OUTPUT, IterationDim(1, (_STICK, _NONE, _STICK)))
    index_lane = lane_index(dims, _INDEX)
    if index_lane < 0:
        index_lane = moved
    multiples = _gather_multiples(dims, lane, index_lane, op.lanes(_OUTPUT))
    operands = [
        TensorOperand(_TABLE, op.formats[_TABLE], lane, "VALUE", (moved, op.rows)),
        TensorOperand(_INDEX, op.formats[_INDEX], index_lane, "KERNEL_IDX"),
        TensorOperand(_OUTPUT, op.formats[_OUTPUT], lane),
    ]
    constants = {INDEX_LIMIT_CONSTANT: op.rows}
    return Outline(op.name, dims, multiples, operands, constants, division=division)


def _gather_multiples(
    dims: Sequence[IterationDim], lane: int, index_lane: int, lanes: int
) -> dict[int, int]:
    multiples = {lane: lanes}
    if index_lane != lane:  # each core reads whole sticks of the index
        extent = dims[index_lane].extent
        if extent > INDEX_STICK and extent % INDEX_STICK:
            raise LoweringError("an index in sticks that are not whole")
        multiples[index_lane] = min(extent, INDEX_STICK)
    return multiples


_OUTLINES: dict[OpKind, Callable[[IteratedOp, CoreDivision | None], Outline]] = {
    OpKind.POINTWISE: _pointwise,
    OpKind.REDUCTION: _reduction,
    OpKind.MATMUL: _matmul,
    OpKind.RESTICKIFY: _restickify,
    OpKind.TOPK: _topk,
    OpKind.GATHER: _gather,
}
