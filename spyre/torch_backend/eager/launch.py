"""Running eager operations: found in the cache, or lowered and compiled, then launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spyre.dtypes import STICK_BYTES, FormatKind, find_stored_format
from spyre.layout import SpyreTensorLayout
from spyre.lru_cache import LruCache
from spyre.runtime.arguments import HostTensor
from spyre.runtime.flex import to_device_plan
from spyre.torch_backend.compat import TO_CARD, in_range
from spyre.torch_backend.eager.compile import (
    CachedCall,
    EagerCall,
    NeedsRelayout,
    Operand,
    ScalarOperand,
    prepare,
)
from spyre.torch_backend.program import (
    LoweringError,
    LoweringFunction,
    current_recorder,
    device_format,
)
from spyre.torch_backend.tensors import (
    DeviceBuffer,
    StorageLayout,
    allocate_based,
    buffer_of,
    lay_out_for,
    relayout,
)

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice

MAX_CALLS = 16384
Key = tuple[object, ...]
_calls: LruCache[Key, CachedCall | NeedsRelayout | LoweringError] = LruCache(MAX_CALLS)
"""What a call over such operands runs, or why nothing does."""


def run(
    name: str,
    lowering: LoweringFunction,
    operands: Sequence[Operand],
    parameters: tuple[Any, ...] = (),
    target: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """The results of an operation as new tensors; ``target`` takes the one result if it can.

    An empty tuple says that the target has it. At least one operand is a tensor, none is empty.
    """
    if (recorder := current_recorder()) is not None:
        return recorder(name, lowering, operands, parameters, target)
    buffers = [ready_buffer(o) if isinstance(o, torch.Tensor) else None for o in operands]
    card = next(b.card for b in buffers if b is not None)
    target_buffer = None if target is None else ready_buffer(target)
    for buffer in (*buffers, target_buffer):
        if buffer is not None and buffer.card is not card:
            raise _different_cards(card, buffer.card)
    key = _key(name, parameters, operands, buffers, card, target, target_buffer)
    cached = _calls.get(key)
    if cached is None:
        call = EagerCall(name, lowering, parameters, operands, buffers, card, target, target_buffer)
        cached = _prepared_or_error(call)
        _calls.put(key, cached)
    if isinstance(cached, LoweringError):
        raise cached
    if isinstance(cached, NeedsRelayout):
        copies = [_relayout_if(k in cached.operands, o) for k, o in enumerate(operands)]
        return run(name, lowering, copies, parameters, target)
    return _launch(cached, card, operands, buffers, target_buffer)


def ready_buffer(tensor: torch.Tensor) -> DeviceBuffer:
    """The buffer of a tensor that is about to be used on the card: it has a base."""
    buffer = buffer_of(tensor)
    if buffer.base is None and buffer.host_bytes:
        lay_out_for(buffer, tensor)
    return buffer


def _prepared_or_error(call: EagerCall) -> CachedCall | NeedsRelayout | LoweringError:
    """What a call runs; results that cannot be written straight to the target are new tensors."""
    try:
        return prepare(call)
    except LoweringError as error:
        if call.target is None:
            return error
    return _prepared_or_error(replace(call, target=None, target_buffer=None))


def _different_cards(first: FlexDevice, second: FlexDevice) -> RuntimeError:
    return RuntimeError(
        "Expected all tensors to be on the same device, "
        f"but found at least two devices, spyre:{first.index} and spyre:{second.index}!"
    )


def _key(
    name: str,
    parameters: tuple[Any, ...],
    operands: Sequence[Operand],
    buffers: Sequence[DeviceBuffer | None],
    card: FlexDevice,
    target: torch.Tensor | None,
    target_buffer: DeviceBuffer | None,
) -> Key:
    # a reset of the card forgets its programs: they are compiled again under a new number
    parts: list[object] = [name, parameters, card.index, card.device.resets]
    for operand, buffer in zip(operands, buffers, strict=True):
        if isinstance(operand, ScalarOperand):
            parts.append(operand.dtype)
        elif buffer is not None:
            parts.append(_tensor_key(operand, buffer))
    if target is not None and target_buffer is not None:
        # a target that is an operand too may not be written before all of it has been read
        aliases = tuple(k for k, b in enumerate(buffers) if b is target_buffer)
        parts.append((*_tensor_key(target, target_buffer), aliases))
    return tuple(parts)


def _tensor_key(tensor: torch.Tensor, buffer: DeviceBuffer) -> Key:
    """What the kernel for this tensor depends on, its address apart."""
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        buffer.layout_id,
        buffer.zero_padded,
    )


def _relayout_if(needed: bool, operand: Operand) -> Operand:
    return relayout(operand) if needed and isinstance(operand, torch.Tensor) else operand


def _launch(
    cached: CachedCall,
    card: FlexDevice,
    operands: Sequence[Operand],
    buffers: Sequence[DeviceBuffer | None],
    target_buffer: DeviceBuffer | None,
) -> tuple[torch.Tensor, ...]:
    program = cached.program
    arguments: list[DeviceBuffer] = []
    for operand, buffer in zip(operands, buffers, strict=True):
        if isinstance(operand, ScalarOperand):
            arguments.append(number_on_card(card, operand.value, operand.dtype))
        elif buffer is not None:
            arguments.append(buffer)
    if program.constants:
        arguments += [number_on_card(card, c.number, c.dtype) for c in program.constants]
    if program.into_target:
        assert target_buffer is not None
        target_buffer.zero_padded = False
        arguments.append(target_buffer)
    results = []
    for layout in program.results:
        result, buffer = allocate_based(card, layout)
        buffer.zero_padded = False
        arguments.append(buffer)
        results.append(result)
    if program.scratch_bytes:
        arguments.append(scratch_memory(card, program.scratch_bytes))
    addresses = [argument.address_bytes for argument in arguments]
    for number, offset_bytes in cached.offsets_bytes:
        addresses[number] += offset_bytes
    program.compiled.launch(
        card.streams.current, tuple(addresses), [argument.memory for argument in arguments]
    )
    return tuple(results)


# --- numbers and scratch memory on the card -------------------------------------------------------

MAX_SCALARS = 1024
_scalars: LruCache[tuple[int, int, float, str], DeviceBuffer] = LruCache(MAX_SCALARS)


def number_on_card(card: FlexDevice, number: float, dtype: str) -> DeviceBuffer:
    """Memory of a tensor of rank 0, with the number in every lane; cached for the next use."""
    key = (id(card), card.device.resets, number, dtype)
    if number != number or number == 0:
        key = (*key[:2], 0.0, f"{dtype} {number}")  # NaN is unequal to itself, -0 equal to 0
    return _scalars.get_or_make(key, lambda: _upload_scalar(card, number, dtype))


@in_range(TO_CARD)
def _upload_scalar(card: FlexDevice, number: float, dtype: str) -> DeviceBuffer:
    """Through a copy as any other, so that it has the number mode's format."""
    stored = find_stored_format(device_format(dtype))
    lanes = stored.elements_per_stick
    layout = SpyreTensorLayout.from_host((lanes,), dtype)
    buffer = DeviceBuffer.uncounted(card, StorageLayout.of((lanes,), (1,), dtype, layout))
    is_integer = stored.kind is FormatKind.SIGNED
    values = np.full(lanes, number, np.int32 if is_integer else np.float32)
    host = HostTensor.from_array(f"{number:g}", values)
    stream = card.default_stream
    stream.wait_for(stream.copy(to_device_plan(host, buffer.tensor), [buffer.memory]))
    return buffer


MIN_SCRATCH_BYTES = 1 << 20
_scratch: dict[tuple[int, int], tuple[int, DeviceBuffer]] = {}
"""By card and how often it was reset: bytes, and the memory."""


def scratch_memory(card: FlexDevice, size_bytes: int) -> DeviceBuffer:
    """At least ``size_bytes`` for the programs of a card; one piece serves all of them: a program
    is one control block, the cores run one at a time, and nothing in it is read by another.

    Launches keep an older, smaller piece alive while they need it.
    """
    key = (card.index, card.device.resets)
    capacity, scratch = _scratch.get(key, (0, None))
    if scratch is None or capacity < size_bytes:
        capacity = max(MIN_SCRATCH_BYTES, 1 << (size_bytes - 1).bit_length())
        sticks = capacity // STICK_BYTES
        layout = SpyreTensorLayout((sticks, 64), (64, 1), "SEN169_FP16")
        extents = (sticks * 64,)
        base = StorageLayout.of(extents, (1,), "float16", layout)
        scratch = DeviceBuffer.uncounted(card, base)
        _scratch[key] = capacity, scratch
    return scratch
