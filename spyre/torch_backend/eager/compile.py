"""From an aten operation over particular tensors to a compiled program and how to call it.

Two tensors that differ by their place in memory share a program: views are taken relative to their
first element, and addresses are launch arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import torch
from msgspec.structs import replace

from spyre.errors import ValidationError
from spyre.layout import DeviceView, SpyreTensorLayout, contiguous_strides, device_view
from spyre.lru_cache import LruCache
from spyre.torch_backend.device import DTYPES, name_of
from spyre.torch_backend.program import (
    CompiledProgram,
    ConstantArgument,
    Lowering,
    LoweringError,
    LoweringFunction,
    Value,
    cut_lanes,
    other_lane,
    scalar_view,
    show_program,
    shows_programs,
    store_result,
    stored_elements,
)
from spyre.torch_backend.tensors import DeviceBuffer, StorageLayout

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice


class ScalarOperand(msgspec.Struct, frozen=True):
    """A Python number of an operation, as a tensor of rank 0 in ``dtype``."""

    value: float
    dtype: str


Operand: TypeAlias = torch.Tensor | ScalarOperand


class EagerCall(msgspec.Struct, frozen=True):
    """An operation to run.

    ``name`` and ``parameters`` identify the program, together with the operands' views.
    ``buffers``: per operand, None for numbers. ``target``: the tensor to write the one result to,
    and its buffer.
    """

    name: str
    lowering: LoweringFunction
    parameters: tuple[Any, ...]
    operands: Sequence[Operand]
    buffers: Sequence[DeviceBuffer | None]
    card: FlexDevice
    target: tuple[torch.Tensor, DeviceBuffer] | None = None


class EagerProgram(msgspec.Struct, frozen=True):
    """A compiled program; its arguments are operands, constants, results or the target, scratch.

    ``results``: layouts of the new tensors. ``into_target``: the result is written to the target.
    """

    compiled: CompiledProgram
    constants: tuple[ConstantArgument, ...]
    results: tuple[StorageLayout, ...]
    scratch_bytes: int
    into_target: bool


CachedCall = tuple[EagerProgram, tuple[tuple[int, int], ...]]
"""A program for particular views, and (argument, bytes) of those that begin at an offset."""

OperandView = tuple[DeviceView, tuple[int, int, int] | None, str, bool]
"""A view of an operand's memory; (dim, start, length) of the operand within that view if it begins
inside a stick, else None; its dtype; whether its sticks are padded with zeros.
"""

Relayout = frozenset[int]
"""Numbers of the operands that have to be copied to the default layout first."""

MAX_PROGRAMS = 4096
_programs: LruCache[tuple[object, ...], EagerProgram] = LruCache(MAX_PROGRAMS)


def prepare(call: EagerCall) -> CachedCall | Relayout:
    """The program of a call, or the operands to copy to the default layout first.

    LoweringError when these do not help either.
    """
    views = [_view(o, b) for o, b in zip(call.operands, call.buffers, strict=True)]
    if missing := frozenset(k for k, view in enumerate(views) if view is None):
        return missing
    operand_views = [view for view in views if view is not None]
    target, overlaps, result = None, False, None
    if call.target is not None:
        tensor, target_buffer = call.target
        target = view_on_card(tensor, target_buffer)
        if target is not None and not target.writable:
            target = None
        if target is not None:
            # operands that may share memory with it in another way than element by element
            shared = tuple(
                buffer is target_buffer and (view, cut) != (target, None)
                for (view, cut, *_), buffer in zip(operand_views, call.buffers, strict=True)
            )
            overlaps = any(shared)
            result = replace(target, offset_bytes=0), name_of(tensor.dtype), shared
    tensors = tuple((replace(view, offset_bytes=0), *rest) for view, *rest in operand_views)
    key = (call.name, call.parameters, call.card.index, call.card.device.resets, tensors, result)
    try:
        program = _programs.get_or_make(
            key, lambda: _compile(call, operand_views, target, overlaps, key)
        )
    except LoweringError:
        odd = frozenset(k for k, o in enumerate(call.operands) if _is_odd(o, call.buffers[k]))
        if not odd:
            raise
        return odd
    offsets = {k: view.offset_bytes for k, (view, *_) in enumerate(operand_views)}
    if target is not None and program.into_target:
        offsets[len(operand_views) + len(program.constants)] = target.offset_bytes
    return program, tuple((k, n) for k, n in offsets.items() if n)


def view_on_card(tensor: torch.Tensor, buffer: DeviceBuffer) -> DeviceView | None:
    """The pitches of a tensor's elements; None if it has none, or reinterprets another dtype."""
    base = buffer.base
    if base is None or DTYPES[base.dtype] != tensor.dtype:
        return None
    extents = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return device_view(base.layout, base.shape, base.strides, *extents)


def _view(operand: Operand, buffer: DeviceBuffer | None) -> OperandView | None:
    if isinstance(operand, ScalarOperand):
        return scalar_view(operand.dtype), None, operand.dtype, True
    assert buffer is not None
    view, cut = view_on_card(operand, buffer), None
    if view is None:
        view, cut = _cut_view(operand, buffer)
    return None if view is None else (view, cut, name_of(operand.dtype), buffer.zero_padded)


MAX_CUT_ELEMENTS = 1 << 20
"""Elements a cut may need room for where it is laid out with other sticks; beyond that, and beyond
four times the operand's, DMA.
"""


def _cut_view(
    tensor: torch.Tensor, buffer: DeviceBuffer
) -> tuple[DeviceView | None, tuple[int, int, int] | None]:
    """The view of longer rows of which rows that begin within sticks are a part, and this part."""
    base, strides = buffer.base, tensor.stride()
    rows = [k for k, n in enumerate(tensor.shape) if n > 1 and strides[k] == 1]
    if base is None or len(rows) != 1 or 1 not in base.strides:
        return None, None
    (dim,) = rows
    offset, lanes = tensor.storage_offset(), base.layout.elements_per_stick
    length, start = tensor.shape[dim], offset % base.shape[base.strides.index(1)] % lanes
    sizes = tuple(n + start if k == dim else n for k, n in enumerate(tensor.shape))
    needed = stored_elements(sizes, other_lane(sizes, dim), lanes)
    if not start or needed > max(MAX_CUT_ELEMENTS, 4 * tensor.numel()):
        return None, None
    longer = torch.empty(0, dtype=tensor.dtype, device="meta")
    view = view_on_card(longer.as_strided(sizes, strides, offset - start), buffer)
    return view, (dim, start, length)


def _is_odd(operand: Operand, buffer: DeviceBuffer | None) -> bool:
    """True unless the operand is a whole contiguous tensor in the layout new tensors have."""
    if buffer is None or buffer.base is None or isinstance(operand, ScalarOperand):
        return False
    size, base = tuple(operand.size()), buffer.base
    contiguous = operand.storage_offset() == 0 and operand.stride() == contiguous_strides(size)
    default = SpyreTensorLayout.from_host(size, base.dtype)
    return not (contiguous and base.shape == size and base.layout == default)


def _compile(
    call: EagerCall,
    views: Sequence[OperandView],
    target: DeviceView | None,
    overlaps: bool,
    key: tuple[object, ...],
) -> EagerProgram:
    builder = Lowering()
    program = builder.builder
    values = [program.argument(view, dtype, is_padded) for view, _, dtype, is_padded in views]
    for k, (_, cut, *_) in enumerate(views):
        if cut is not None:
            values[k] = cut_lanes(builder, values[k], *cut)
    lowered = call.lowering(builder, *values, *call.parameters)
    results = [lowered] if isinstance(lowered, Value) else list(lowered)
    layouts, first = [], results[0]
    into_target = target is not None and (
        (first.sizes, first.format) == (target.sizes, target.device_format)
    )
    if into_target and target is not None and call.target is not None:
        is_operand = call.target[1] in call.buffers
        destination = program.argument(target, first.dtype)
        store_result(builder, first, destination, is_operand=is_operand, overlaps=overlaps)
    else:
        regions = [value.region for value in results]
        for k, value in enumerate(results):
            if value.order is None or value.region in regions[:k]:
                results[k] = builder.copy(value)
        for value in results:
            program.output(value)
            layouts.append(_storage_layout(value))
    try:
        parts = program.build()
    except ValidationError as error:
        if error.code != "SPY235":
            raise
        raise LoweringError(error.finding.found) from error  # more than a core can address
    if shows_programs():
        show_program(call.name, str(program), parts)
    constants = tuple(builder.constants[k] for k in sorted(builder.constants))
    compiled = CompiledProgram(call.card, call.name, parts, program.spans_bytes(), key)
    return EagerProgram(compiled, constants, tuple(layouts), program.scratch_bytes, into_target)


def _storage_layout(value: Value) -> StorageLayout:
    assert value.order is not None
    strides = contiguous_strides(value.sizes)
    layout = SpyreTensorLayout.from_dim_order(value.sizes, strides, value.dtype, value.order)
    return StorageLayout.of(value.sizes, strides, value.dtype, layout)
