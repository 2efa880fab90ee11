"""From an aten operation over particular tensors to a compiled program and how to call it.

Two tensors that differ by their place in memory share a program: views are taken relative to their
first element, and addresses are launch arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

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


@dataclass(frozen=True, slots=True)
class ScalarOperand:
    """A Python number of an operation, as a tensor of rank 0 in ``dtype``."""

    value: float
    dtype: str


Operand: TypeAlias = torch.Tensor | ScalarOperand


@dataclass(frozen=True, slots=True)
class EagerCall:
    """An operation to run.

    ``name`` and ``parameters`` identify the program, together with the operands' views.
    ``buffers``: per operand, None for numbers. ``target``: the tensor to write the one result to.
    """

    name: str
    lowering: LoweringFunction
    parameters: tuple[Any, ...]
    operands: Sequence[Operand]
    buffers: Sequence[DeviceBuffer | None]
    card: FlexDevice
    target: torch.Tensor | None = None
    target_buffer: DeviceBuffer | None = None


@dataclass(frozen=True, slots=True)
class EagerProgram:
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

OperandView = tuple[DeviceView, tuple[int, int, int] | None]
"""A view of an operand's memory, and (dim, start, length) of the operand within that view if it
begins inside a stick, else None.
"""

Relayout = frozenset[int]
"""Numbers of the operands that have to be copied to the default layout first."""


MAX_PROGRAMS = 4096
_programs: LruCache[tuple[object, ...], EagerProgram] = LruCache(MAX_PROGRAMS)


def prepare(call: EagerCall) -> CachedCall | Relayout:
    """What a call runs. LoweringError when even operands in the default layout do not help."""
    views = [_view(o, b) for o, b in zip(call.operands, call.buffers, strict=True)]
    missing = tuple(k for k, view in enumerate(views) if view is None)
    if missing:
        return frozenset(missing)
    operand_views = [view for view in views if view is not None]
    target = _target_view(call)
    try:
        program = _program(call, operand_views, target)
    except LoweringError:
        odd = tuple(k for k, o in enumerate(call.operands) if _is_odd(o, call.buffers[k]))
        if not odd:
            raise
        return frozenset(odd)
    offsets = {k: view.offset_bytes for k, (view, _) in enumerate(operand_views)}
    if target is not None and program.into_target:
        offsets[len(operand_views) + len(program.constants)] = target.offset_bytes
    return program, tuple((k, n) for k, n in offsets.items() if n)


def view_on_card(tensor: torch.Tensor, buffer: DeviceBuffer) -> DeviceView | None:
    """The pitches of a tensor's elements; None if it has none, or reinterprets another dtype."""
    base = buffer.base
    if base is None or DTYPES[base.dtype] != tensor.dtype:
        return None
    return device_view(
        base.layout,
        base.shape,
        base.strides,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
    )


def _view(operand: Operand, buffer: DeviceBuffer | None) -> OperandView | None:
    if isinstance(operand, ScalarOperand):
        return (scalar_view(operand.dtype), None)
    assert buffer is not None
    view = view_on_card(operand, buffer)
    return _cut_view(operand, buffer) if view is None else (view, None)


MAX_CUT_ELEMENTS = 1 << 20
"""Elements a cut may need room for where it is laid out with other sticks; beyond that, and beyond
four times the operand's, DMA.
"""


def _cut_view(tensor: torch.Tensor, buffer: DeviceBuffer) -> OperandView | None:
    """The view of a tensor whose rows begin within sticks, as a part of longer rows."""
    base, strides = buffer.base, tensor.stride()
    rows = [k for k, n in enumerate(tensor.shape) if n > 1 and strides[k] == 1]
    if base is None or len(rows) != 1 or 1 not in base.strides:
        return None
    (dim,) = rows
    offset, lanes = tensor.storage_offset(), base.layout.elements_per_stick
    length, start = tensor.shape[dim], offset % base.shape[base.strides.index(1)] % lanes
    sizes = tuple(n + start if k == dim else n for k, n in enumerate(tensor.shape))
    needed = stored_elements(sizes, other_lane(sizes, dim), lanes)
    if not start or needed > max(MAX_CUT_ELEMENTS, 4 * tensor.numel()):
        return None
    longer = torch.empty(0, dtype=tensor.dtype, device="meta")
    view = view_on_card(longer.as_strided(sizes, strides, offset - start), buffer)
    return None if view is None else (view, (dim, start, length))


def _target_view(call: EagerCall) -> DeviceView | None:
    """The view of the target, if a program can write its result there."""
    if call.target is None or call.target_buffer is None:
        return None
    view = view_on_card(call.target, call.target_buffer)
    return view if view is not None and view.writable else None


def _is_odd(operand: Operand, buffer: DeviceBuffer | None) -> bool:
    """True unless the operand is a whole contiguous tensor in the layout new tensors have."""
    if buffer is None or buffer.base is None or isinstance(operand, ScalarOperand):
        return False
    size, base = tuple(operand.size()), buffer.base
    contiguous = operand.storage_offset() == 0 and operand.stride() == contiguous_strides(size)
    default = SpyreTensorLayout.from_host(size, base.dtype)
    return not (contiguous and base.shape == size and base.layout == default)


def _program(
    call: EagerCall, views: Sequence[OperandView], target: DeviceView | None
) -> EagerProgram:
    key = _program_key(call, views, target)
    return _programs.get_or_make(key, lambda: _compile(call, views, target, key))


def _program_key(
    call: EagerCall, views: Sequence[OperandView], target: DeviceView | None
) -> tuple[object, ...]:
    tensors = tuple(
        (replace(view, offset_bytes=0), cut, _dtype(o), b is not None and b.zero_padded)
        for (view, cut), o, b in zip(views, call.operands, call.buffers, strict=True)
    )
    result: object = None
    if target is not None and call.target is not None:
        result = (
            replace(target, offset_bytes=0),
            name_of(call.target.dtype),
            _overlaps(call, views, target),
        )
    return (call.name, call.parameters, call.card.index, call.card.device.resets, tensors, result)


def _dtype(operand: Operand) -> str:
    return operand.dtype if isinstance(operand, ScalarOperand) else name_of(operand.dtype)


def _overlaps(
    call: EagerCall, views: Sequence[OperandView], target: DeviceView
) -> tuple[bool, ...]:
    """Per operand, whether it may share memory with the target in another way than element by
    element.
    """
    return tuple(
        buffer is call.target_buffer and seen != (target, None)
        for seen, buffer in zip(views, call.buffers, strict=True)
    )


def _compile(
    call: EagerCall,
    views: Sequence[OperandView],
    target: DeviceView | None,
    key: tuple[object, ...],
) -> EagerProgram:
    builder = Lowering()
    program = builder.builder
    values = [
        program.argument(view, _dtype(o), b is None or b.zero_padded)
        for (view, _), o, b in zip(views, call.operands, call.buffers, strict=True)
    ]
    for k, (_, cut) in enumerate(views):
        if cut is not None:
            values[k] = cut_lanes(builder, values[k], *cut)
    lowered = call.lowering(builder, *values, *call.parameters)
    results = [lowered] if isinstance(lowered, Value) else list(lowered)
    into_target = target is not None and _store(builder, results[0], target, call, views)
    layouts = []
    if not into_target:
        for value in [_fresh(builder, value, k, results) for k, value in enumerate(results)]:
            program.output(value)
            layouts.append(_storage_layout(value))
    parts = program.build()
    if shows_programs():
        show_program(call.name, str(program), parts)
    constants = tuple(builder.constants[k] for k in sorted(builder.constants))
    compiled = CompiledProgram(call.card, call.name, parts, program.spans_bytes(), key)
    return EagerProgram(compiled, constants, tuple(layouts), program.scratch_bytes, into_target)


def _store(
    builder: Lowering,
    value: Value,
    target: DeviceView,
    call: EagerCall,
    views: Sequence[OperandView],
) -> bool:
    """Have ``value`` written to the target; False if its elements have another format."""
    if value.sizes != target.sizes or value.format != target.device_format:
        return False
    destination = builder.builder.argument(target, value.dtype)
    is_operand = any(buffer is call.target_buffer for buffer in call.buffers)
    store_result(
        builder,
        value,
        destination,
        is_operand=is_operand,
        overlaps=any(_overlaps(call, views, target)),
    )
    return True


def _fresh(builder: Lowering, value: Value, number: int, results: Sequence[Value]) -> Value:
    """``value`` if no other result shares its memory and its layout is a plain one, else a copy."""
    repeated = any(other.region == value.region for other in results[:number])
    if value.order is not None and not repeated:
        return value
    return builder.copy(value)


def _storage_layout(value: Value) -> StorageLayout:
    assert value.order is not None
    strides = contiguous_strides(value.sizes)
    layout = SpyreTensorLayout.from_dim_order(value.sizes, strides, value.dtype, value.order)
    return StorageLayout.of(value.sizes, strides, value.dtype, layout)
