"""From an `OpSpec` of the compiler to the description the SDSC writer takes.

Symbols become the operation's dims, and the cores share them as the iteration space says. Cores
count with the first symbol's slices fastest, of a matmul whose K is shared with those of K.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.errors import UnsupportedError
from spyre.hw.ops.table import Family, find_op
from spyre.hw.spec import CORES
from spyre.layout.device_view import DeviceView, Factor
from spyre.mlir.builder.operations import BufferAddress, OperationSpec
from spyre.mlir.operation.footprint import RESTICKIFY
from spyre.torch_backend.inductor.bundles.op_spec import OpSpec, TensorArg
from spyre.torch_backend.inductor.bundles.views import (
    INDIRECT,
    LX,
    UNKNOWN_COUNT,
    ArgView,
    LoopCounts,
    TableRows,
    arg_view,
    buffer_bytes,
    inexpressible,
    is_dynamic_arg,
    table_view,
    tensor_name,
)
from spyre.torch_backend.program.emit import emit_over
from spyre.torch_backend.program.emitter import IterationSpace
from spyre.torch_backend.program.iteration import CoreDivision, IterationDim, ScratchpadPlace, cut
from spyre.torch_backend.program.op_spec import LoweringError, OpFunction, OpKind, UnevenDivision

PlaceOf = Callable[[TensorArg, ArgView], BufferAddress | ScratchpadPlace]
REDUCED, K_ROLE = 1, 3


@dataclass(frozen=True, slots=True)
class Emitted:
    """``shares``: of every tensor in LX."""

    operation: OperationSpec
    shares: tuple[tuple[TensorArg, LxShare], ...]


def emit_spec(spec: OpSpec, loops: LoopCounts, place: PlaceOf) -> Emitted:
    """The SDSC of ``spec`` inside ``loops``.

    UnsupportedError SPY960 for what an SDSC cannot say, SPY961 for a work division that does not
    fit, SPY962 for names without an SDSC, SPY964 for sizes that only a launch knows.
    """
    instruction = instruction_of(spec)
    args = sorted(spec.args, key=lambda arg: not arg.is_input)
    found, rows = _views(spec, args, loops)
    views = [f.view for f in found]
    bases = [place(arg, f) for arg, f in zip(args, found, strict=True)]
    try:
        dims, division = _dims(spec, instruction.kind, views)
        if rows is not None:
            dims = rows.with_single(dims)
        count = 0 if rows is None else rows.count
        operation = emit_over(instruction, IterationSpace(dims, views, bases, division, count))
    except UnevenDivision as error:
        raise not_divisible(spec, error.finding.found) from error
    except LoweringError as error:
        raise inexpressible(spec, "its tensors", error.finding.found) from error
    for k, arg in enumerate(args):
        unread = rows.unread_bytes if rows is not None and k == 0 else 0
        _check_reach(spec, arg, found[k], reach_bytes(operation, dims, k) + unread, loops)
    shares = [
        (arg, LxShare(buffer_bytes(arg), begins_bytes(operation, dims, division, k)))
        for k, arg in enumerate(args)
        if LX in arg.allocation
    ]
    return Emitted(operation, tuple(shares))


def _views(
    spec: OpSpec, args: Sequence[TensorArg], loops: LoopCounts
) -> tuple[list[ArgView], TableRows | None]:
    """Where the tensors lie, and the rows of a gather's table."""
    if INDIRECT not in spec.op_info:
        found = [arg_view(spec, arg, loops) for arg in args]
        return [*found[:-1], _part(spec, found[-1])], None
    if loops:
        raise inexpressible(spec, "its table", "a gather in a loop")
    table, rows = table_view(spec)
    return [table, *(arg_view(spec, arg) for arg in args[1:])], rows


def _check_reach(
    spec: OpSpec, arg: TensorArg, found: ArgView, reach: int, loops: LoopCounts
) -> None:
    """An operation that walks whole sticks, and K by sticks, stays within the buffer."""
    if is_dynamic_arg(arg) or any(
        count == UNKNOWN_COUNT and loop in found.loop_strides for loop, count in loops
    ):
        return  # no number yet; loops go on within the pitches
    reach += found.view.offset_bytes
    strides = {loop: int(stride) for loop, stride in found.loop_strides.items()}
    reach += sum((count - 1) * strides.get(loop, 0) for loop, count in loops)
    if reach > buffer_bytes(arg):
        text = f"{reach} bytes, in whole sticks, of a buffer of {buffer_bytes(arg)}"
        raise inexpressible(spec, tensor_name(spec, arg), text, "pad the buffer")


def not_divisible(spec: OpSpec, found: str) -> UnsupportedError:
    """SPY961 about the work division of ``spec``."""
    return UnsupportedError(
        "SPY961",
        f"{spec.op}: the cores cannot share it as its iteration space says",
        expected="whole sticks per core, at most one split reduction symbol, and that K of a "
        "matmul; tensors in LX shared by all their operations alike",
        found=found,
    )


def _part(spec: OpSpec, found: ArgView) -> ArgView:
    """The output from the place on that ``part`` (symbol's number, start, length) names."""
    if "part" not in spec.op_info:
        return found
    dim, start, length = spec.op_info["part"]
    factors, lanes = found.view.dims[dim], found.view.elements_per_stick
    unit = lanes if factors and factors[0].lane else 1
    if len(factors) != 1 or factors[0].extent != length or start % unit:
        raise inexpressible(spec, "its output", f"part {(dim, start, length)}")
    offset_bytes = found.view.offset_bytes + start // unit * factors[0].pitch_bytes
    return replace(found, view=replace(found.view, offset_bytes=offset_bytes))


def _dims(
    spec: OpSpec, kind: OpKind, views: Sequence[DeviceView]
) -> tuple[list[IterationDim], CoreDivision]:
    """The symbols' dims, cut where a tensor has other pitches, and how the cores share them."""
    dims: list[IterationDim] = []
    splits: dict[int, int] = {}
    order: list[int] = []
    along = spec.op_info.get(INDIRECT, ("", "", 0))[1]
    for k, (symbol, (_, cores)) in enumerate(spec.iteration_space.items()):
        factors = [view.dims[k] for view in views]
        role = int(str(symbol) == along) if along else _role(kind, factors)
        pieces = cut(views[0].sizes[k], factors, views, role) if factors[0] else []
        if cores > 1 and not pieces:
            raise not_divisible(spec, f"{cores} slices of one element along {symbol}")
        for piece in pieces:
            slices = cores if piece is pieces[-1] else gcd(cores, piece.extent)
            cores //= slices
            if slices > 1:
                splits[len(dims)] = slices
            dims.append(piece)
        order += range(len(dims) - 1, len(dims) - 1 - len(pieces), -1)
    reduced = [k for k in splits if _is_reduced(kind, dims[k])]
    shared_k = kind is OpKind.MATMUL and all(dims[k].factors[0].lane for k in reduced)
    if len(reduced) > int(shared_k) or prod(splits.values()) > CORES:
        raise not_divisible(spec, f"slices {_slices(spec)}")
    if spec.op_info.get("k_fast", True):
        order.sort(key=lambda k: k not in reduced)
    return dims, CoreDivision(splits, order)


def _slices(spec: OpSpec) -> Mapping[str, int]:
    return {str(symbol): cores for symbol, (_, cores) in spec.iteration_space.items()}


def _role(kind: OpKind, factors: Sequence[tuple[Factor, ...]]) -> int:
    held = [any(f.pitch_bytes or f.lane for f in dim) for dim in factors]
    if kind is OpKind.TOPK:
        return 0 if held[0] == held[1] else 1 if held[0] else 2
    if kind is OpKind.REDUCTION:
        return 0 if held[-1] else REDUCED
    if kind is OpKind.MATMUL:
        if not held[-1]:
            return K_ROLE
        return 0 if held[0] == held[1] else 1 if held[0] else 2
    return 0


def _is_reduced(kind: OpKind, dim: IterationDim) -> bool:
    return dim.role == {OpKind.REDUCTION: REDUCED, OpKind.MATMUL: K_ROLE}.get(kind, -1)


_POINTWISE_FAMILIES = (Family.ELEMENTWISE, Family.COPY, Family.CONVERT, Family.REQUANTIZE)
_KINDS = dict.fromkeys(_POINTWISE_FAMILIES, OpKind.POINTWISE) | {
    Family.REDUCTION: OpKind.REDUCTION,
    Family.MATMUL: OpKind.MATMUL,
    Family.RESTICKIFY: OpKind.RESTICKIFY,
    Family.TOPK: OpKind.TOPK,
}
_INPUT_COUNTS = {OpKind.MATMUL: 2, OpKind.RESTICKIFY: 1, OpKind.REDUCTION: 1}
_INPUT_COUNTS |= {OpKind.TOPK: 1, OpKind.GATHER: 2}
OP_INFO = ("constants", "mask_from", "lane_multiple", "part", "k_fast", INDIRECT)
"""Keys of ``op_info``: constant name → bits as float32; fields of the eager `OpSpec`; False where
cores that add up one tile of a matmul have no neighbouring numbers; how a gather reads its table.
"""


def instruction_of(spec: OpSpec) -> OpFunction:
    """What ``spec`` does. UnsupportedError SPY962 for a name the cores do not have, SPY960 for an
    operation that is more than its tensors' coordinates.
    """
    row = find_op(spec.op)
    if row is None:
        raise unimplemented(spec.op)
    kind = _KINDS.get(row.family)
    if kind is None:
        raise inexpressible(spec, "it", f"a {row.family} operation")
    if INDIRECT in spec.op_info:
        kind = OpKind.GATHER
    _check_form(spec, kind)
    unknown = [key for key in spec.op_info if key not in OP_INFO]
    if unknown:
        raise inexpressible(spec, "it", f"op_info {unknown[0]!r}", f"known: {', '.join(OP_INFO)}")
    info = spec.op_info
    return OpFunction(
        kind,
        row.name,
        dict(info.get("constants", {})),
        int(info.get("mask_from", 0)),
        int(info.get("lane_multiple", 0)),
    )


def _check_form(spec: OpSpec, kind: OpKind) -> None:
    inputs = sum(arg.is_input for arg in spec.args)
    outputs = len(spec.args) - inputs
    if inputs != _INPUT_COUNTS.get(kind, inputs) or outputs != 1:
        raise inexpressible(spec, "it", f"{inputs} inputs and {outputs} outputs of {spec.op}")
    if kind in (OpKind.POINTWISE, OpKind.REDUCTION) and spec.is_reduction != (
        kind is OpKind.REDUCTION
    ):
        raise inexpressible(spec, "it", f"{spec.op} with is_reduction={spec.is_reduction}")


def unimplemented(op: str) -> UnsupportedError:
    """SPY962 about an operation of this name."""
    return UnsupportedError(
        "SPY962",
        f"there is no SDSC for {op}",
        expected="operations of the cores only",
        found=op,
        hint="outside of compiled code the operation runs on the CPU",
    )


@dataclass(frozen=True, slots=True)
class LxShare:
    """How the cores share a tensor in LX: the tensor's bytes, and where in it each core's part
    begins.
    """

    size_bytes: int
    begins_bytes: tuple[int, ...]


def reach_bytes(operation: OperationSpec, dims: Sequence[IterationDim], number: int) -> int:
    """Bytes from a tensor's first stick to the end of the last one the operation touches."""
    reach = STICK_BYTES
    for extent, dim in zip(operation.extents.values(), dims, strict=False):
        factor = dim.factors[number]
        steps = dim.extent if operation.name == RESTICKIFY else extent
        if factor.lane:
            steps = -(-extent // _lanes(operation, number))
        reach += (steps - 1) * factor.pitch_bytes
    return reach


def begins_bytes(
    operation: OperationSpec, dims: Sequence[IterationDim], division: CoreDivision, number: int
) -> tuple[int, ...]:
    """Bytes from a tensor's start to each core's part of it."""
    names = list(operation.extents)
    rest = np.arange(prod(division.splits.values()), dtype=np.int64)
    begins = np.zeros_like(rest)
    for k in division.order:
        slices, factor = division.splits.get(k, 1), dims[k].factors[number]
        rest, index = np.divmod(rest, slices)
        elements = operation.extents[names[k]] // slices
        lanes = _lanes(operation, number) if factor.lane else 1
        begins += index * (elements // lanes * factor.pitch_bytes)
    return tuple(int(b) for b in begins)


def _lanes(operation: OperationSpec, number: int) -> int:
    """Elements per stick of a tensor, the outputs counted last, an index before them."""
    tensor = [*operation.inputs, *operation.index_inputs, *operation.outputs][number]
    return prod(size for _, size in tensor.stick)
