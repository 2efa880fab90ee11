"""From the operations of a program under construction to those of a kernel: undivided, unplaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spyre.dtypes import find_stored_format
from spyre.mlir.builder import POOL
from spyre.torch_backend.inductor.bundles import HBM, KernelOp, KernelTensor, roles_of
from spyre.torch_backend.inductor.kernel.operands import LoopPath
from spyre.torch_backend.program import (
    DeviceOp,
    Ints,
    IterationDim,
    LoweringError,
    OpKind,
    Value,
    iterated,
)


@dataclass(frozen=True, slots=True)
class RegionPlace:
    """Where a value lies. ``argument``: number among the launch arguments, -1 for scratch.
    ``moves``: loops go on in it; else it holds a tile, the same memory in all iterations.
    """

    name: str
    argument: int
    size_bytes: int
    moves: bool


def kernel_op(
    operation: DeviceOp, places: Mapping[int, RegionPlace], path: LoopPath
) -> tuple[KernelOp, tuple[str, ...]]:
    """The operation whose scratch tensors have no place yet, and its tensors' names.

    ``places``: by region. ``path``: loops around it. LoweringError for tiles that do not begin with
    a stick, and rows of a gather in several steps.
    """
    values = [*operation.inputs, operation.written]
    # Dims that all operands walk as one are joined; loops move along single ones, hints divide them
    walked = iterated(operation, joined=not (path or path.shares))
    dims, is_gather = walked.dims, operation.kind is OpKind.GATHER
    if is_gather and sum(dim.role == 1 for dim in dims) > 1:
        raise LoweringError("rows of a gather in several steps")
    extents = [_walked_extent(dim, operation.lane_multiple, walked.formats) for dim in dims]
    singles = _single_tiles(values)
    loop_dims = _loop_dims(path, dims, singles)
    extents += [1] * len(singles)
    tensors = []
    for number, value in enumerate(values):
        factors = [dim.factors[number] for dim in dims]
        steps = dict(value.tile_pitches)
        place = places[value.region]
        tensor = KernelTensor(
            walked.formats[number],
            (*(f.pitch_bytes for f in factors), *(steps.get(loop, 0) for loop in singles)),
            next((k for k, factor in enumerate(factors) if factor.lane), -1),
            place.argument,
            HBM if place.argument >= 0 else POOL,
            size_bytes=place.size_bytes,
            offset_bytes=value.view.offset_bytes,
            is_tile=bool(path) and not place.moves,
        )
        strides = () if tensor.is_tile else _strides(tensor, extents, loop_dims, path.counts)
        tensors.append(tensor if not any(strides) else replace(tensor, strides=strides))
    roles = (
        tuple(dim.role for dim in dims)
        if is_gather
        else roles_of(operation.kind, tensors, len(extents))
    )
    op = KernelOp(
        operation.name,
        operation.kind,
        tuple(extents),
        tuple(tensors),
        roles,
        constants=tuple(operation.constants.items()),
        mask_from=operation.mask_from,
        rows=walked.rows,
        loop_dims=loop_dims,
        cores=_asked_cores(path, operation, dims, len(extents)),
    )
    return op, tuple(places[value.region].name for value in values)


def _walked_extent(dim: IterationDim, multiple: int, formats: Sequence[str]) -> int:
    """Elements along a dim; lanes that are walked several sticks at a time, in whole ones.

    ``multiple``: of such lanes, where the operation says so; else they are those of tensors whose
    sticks differ.
    """
    along = [name for name, factor in zip(formats, dim.factors, strict=True) if factor.lane]
    lanes = {find_stored_format(name).elements_per_stick for name in along}
    if not lanes or (not multiple and len(lanes) == 1):
        return dim.extent
    multiple = multiple or max(lanes)
    return -(-dim.extent // multiple) * multiple


def _single_tiles(values: Sequence[Value]) -> list[int]:
    """Loops over tiles of one element, along which the views have no dim."""
    return sorted({loop for value in values for loop, pitch in value.tile_pitches if pitch})


def _asked_cores(
    path: LoopPath, operation: DeviceOp, dims: Sequence[IterationDim], rank: int
) -> Ints:
    """How many cores hints let share each dim, empty without any: of a host dim's, the outermost.

    Restickifies are copies that the compiler makes, which nobody has a hint for.
    """
    if not path.shares or operation.kind is OpKind.RESTICKIFY:
        return ()
    cores = [1] * rank
    for host_dim, count in path.shares:
        number = next((k for k, dim in enumerate(dims) if dim.role == host_dim), None)
        if number is not None:
            cores[number] = count
    return tuple(cores)


def _loop_dims(path: LoopPath, dims: Sequence[IterationDim], singles: Sequence[int]) -> Ints:
    """Per loop the dim it moves along: the outermost of a host dim's, or that of single tiles."""
    first: dict[int | None, int] = {dim.role: k for k, dim in reversed([*enumerate(dims)])}
    return tuple(
        len(dims) + singles.index(loop) if loop in singles else first.get(host_dim, -1)
        for loop, host_dim in enumerate(path.dims)
    )


def _strides(
    tensor: KernelTensor, extents: Sequence[int], loop_dims: Ints, counts: Sequence[Any]
) -> tuple[Any, ...]:
    """Bytes per iteration of every loop.

    Of two loops along one dim the outer one goes on where all tiles of the inner one end.
    """
    reached, strides = list(extents), [0] * len(loop_dims)
    for loop in reversed(range(len(loop_dims))):
        dim = loop_dims[loop]
        if dim < 0:
            continue
        unit = tensor.lanes if dim == tensor.lane else 1
        if tensor.pitches[dim] and reached[dim] % unit:
            raise LoweringError(f"tiles of {reached[dim]} elements, in steps of {unit}")
        strides[loop] = reached[dim] // unit * tensor.pitches[dim]
        reached[dim] *= counts[loop]
    return tuple(strides)
