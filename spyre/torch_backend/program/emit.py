"""Every kind of `OpSpec` as the description of an SDSC."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spyre.dtypes import STICK_BYTES
from spyre.layout.view_factors import Factor
from spyre.mlir.sdsc_builder import OperationSpec, Place, TensorSpec
from spyre.mlir.sdsc_value_rules import MASK_CONSTANT
from spyre.torch_backend.program.constants import float_bits
from spyre.torch_backend.program.emission import (
    Emitter,
    Operand,
    lane_index,
    unit_lane,
)
from spyre.torch_backend.program.emit_gather import emit_gather, gather_walk
from spyre.torch_backend.program.iteration import IterationDim, common_iteration
from spyre.torch_backend.program.op_spec import Instruction, OpKind, OpSpec
from spyre.torch_backend.program.value import NotExpressible, Value
from spyre.torch_backend.program.walk import Walk

PlaceOf = Callable[[Value], Place]
MATMUL_STICK = 64
_NEUTRAL = {"max": float("-inf"), "min": float("inf"), "prod": 1.0}
"""What masked elements count as, where it is not 0."""


def emit(spec: OpSpec, place: PlaceOf) -> OperationSpec:
    """The SDSC of ``spec``; NotExpressible when its operands' sticks do not go together."""
    return emit_over(spec.instruction, walk_of(spec, place))


def walk_of(spec: OpSpec, place: PlaceOf) -> Walk:
    """The tensors of ``spec`` over common dims. NotExpressible as of `common_iteration`."""
    return _WALKS[spec.kind](spec, place)


def emit_over(spec: Instruction, walk: Walk) -> OperationSpec:
    """The SDSC of an operation over given dims.

    Roles of dims: of a reduction 1 for what it reduces; of a matmul 0 for batches, 1 for M, 2 for
    N, 3 for K; of a top-k 1 for what it goes along, 2 for k; of a gather 1 for the output's dim of
    rows; else 0. NotExpressible as of `emit`, NotDivisible for divisions that do not fit.
    """
    return _EMITTERS[spec.kind](spec, walk)


def _pointwise_walk(spec: OpSpec, place: PlaceOf) -> Walk:
    output = spec.written
    values = [*(v.expanded(output.sizes) for v in spec.inputs), output]
    views = [v.view for v in values]
    return Walk(common_iteration(views), views, [place(v) for v in values])


def _pointwise(spec: Instruction, walk: Walk) -> OperationSpec:
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
    emitter: Emitter, walk: Walk, lanes: Sequence[int], roles: Sequence[str] = ()
) -> list[TensorSpec]:
    roles = roles or [""] * len(lanes)
    operands = zip(walk.views, walk.bases, lanes, roles, strict=True)
    return [emitter.tensor(Operand(k, *operand)) for k, operand in enumerate(operands)]


def _reduction_walk(spec: OpSpec, place: PlaceOf) -> Walk:
    (source,) = spec.inputs
    roles = [int(k in spec.dims) for k in range(len(source.sizes))]
    views = [source.view, spec.output.expanded(source.sizes).view]
    return Walk(common_iteration(views, roles), views, [place(source), place(spec.output)])


def _reduction(spec: Instruction, walk: Walk) -> OperationSpec:
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


def _matmul_walk(spec: OpSpec, place: PlaceOf) -> Walk:
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
    return Walk(dims, views, [place(v) for v in values])


def _matmul(spec: Instruction, walk: Walk) -> OperationSpec:
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
        raise NotExpressible("a matmul takes sticks along K and along N")
    return inner, column


def _restickify_walk(spec: OpSpec, place: PlaceOf) -> Walk:
    values = (*spec.inputs, spec.output)
    views = [v.view for v in values]
    return Walk(common_iteration(views), views, [place(v) for v in values])


def _restickify(spec: Instruction, walk: Walk) -> OperationSpec:
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


def _topk_walk(spec: OpSpec, place: PlaceOf) -> Walk:
    """``output``: k elements along ``dims[0]``, which no stick runs along."""
    (source,), (along,) = spec.inputs, spec.dims
    rank = len(source.sizes)
    sizes = [*source.sizes, spec.output.sizes[along]]
    order = [rank if k == along else k for k in range(rank)]
    kept = spec.output.unsqueezed(rank).permuted([*order, along])
    views = [source.unsqueezed(rank).expanded(sizes).view, kept.expanded(sizes).view]
    roles = [1 if k == along else 2 if k == rank else 0 for k in range(rank + 1)]
    return Walk(common_iteration(views, roles), views, [place(source), place(spec.output)])


def _topk(spec: Instruction, walk: Walk) -> OperationSpec:
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
    found = {dim.role for dim in dims}
    pairs = {1: (row, none), 2: (none, row)}
    return [IterationDim(1, pair, role) for role, pair in pairs.items() if role not in found]


_WALKS: dict[OpKind, Callable[[OpSpec, PlaceOf], Walk]] = {
    OpKind.POINTWISE: _pointwise_walk,
    OpKind.REDUCTION: _reduction_walk,
    OpKind.MATMUL: _matmul_walk,
    OpKind.RESTICKIFY: _restickify_walk,
    OpKind.TOPK: _topk_walk,
    OpKind.GATHER: gather_walk,
}
_EMITTERS: dict[OpKind, Callable[[Instruction, Walk], OperationSpec]] = {
    OpKind.POINTWISE: _pointwise,
    OpKind.REDUCTION: _reduction,
    OpKind.MATMUL: _matmul,
    OpKind.RESTICKIFY: _restickify,
    OpKind.TOPK: _topk,
    OpKind.GATHER: emit_gather,
}
