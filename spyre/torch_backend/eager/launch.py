"""Running eager operations: found in the cache, or lowered and compiled, then launched."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spyre.dtypes import find_stored_format
from spyre.dtypes.formats import FormatKind
from spyre.layout import SpyreTensorLayout
from spyre.lru_cache import LruCache
from spyre.runtime.arguments.host_tensor import HostTensor
from spyre.runtime.flex.job import to_device_plan
from spyre.runtime.memory.storage import SpyreTensor
from spyre.torch_backend.eager.compile import (
    CachedCall,
    EagerCall,
    NeedsRelayout,
    prepare,
)
from spyre.torch_backend.eager.operands import Key, Operand, ScalarOperand, key_of, ready_buffer
from spyre.torch_backend.observe.launches import TO_CARD, in_range
from spyre.torch_backend.program.op_spec import LoweringError, LoweringFunction, device_format
from spyre.torch_backend.program.recording import current_recorder
from spyre.torch_backend.tensors.allocation import allocate_based
from spyre.torch_backend.tensors.buffer import DeviceBuffer
from spyre.torch_backend.tensors.copies import relayout

if TYPE_CHECKING:
    from spyre.runtime.flex.device import FlexDevice
    from spyre.runtime.memory.storage import SpyreTensor

MAX_SCALARS = 1024
_scalars: OrderedDict[tuple[int, int, float, str], SpyreTensor] = OrderedDict()


def number_on_card(card: FlexDevice, number: float, dtype: str) -> SpyreTensor:
    """A tensor of rank 0, with the number in every lane of its stick."""
    key = (id(card), card.device.resets, number, dtype)
    if number != number or number == 0:
        key = (*key[:2], 0.0, f"{dtype} {number}")  # NaN is unequal to itself, -0 equal to 0
    found = _scalars.get(key)
    if found is None:
        found = _scalars[key] = _upload_scalar(card, number, dtype)
        if len(_scalars) > MAX_SCALARS:
            _scalars.popitem(last=False)
    return found


@in_range(TO_CARD)
def _upload_scalar(card: FlexDevice, number: float, dtype: str) -> SpyreTensor:
    """Through a copy as any other, so that it has the number mode's format."""
    lanes = find_stored_format(device_format(dtype)).elements_per_stick
    layout = SpyreTensorLayout.from_host((lanes,), dtype)
    storage = card.allocate(layout.device_bytes)
    tensor = SpyreTensor(f"{number:g}", (lanes,), dtype, layout, storage)
    whole = find_stored_format(device_format(dtype)).kind is FormatKind.SIGNED
    values = np.full(lanes, number, np.int32 if whole else np.float32)
    host = HostTensor.from_array(tensor.name, values)
    card.default_stream.launch(to_device_plan(host, tensor.resolved), [tensor])
    card.default_stream.synchronize()
    return tensor


LEAST_BYTES = 1 << 20
_scratch: dict[tuple[int, int], SpyreTensor] = {}


def scratch_memory(card: FlexDevice, size_bytes: int) -> SpyreTensor:
    """At least ``size_bytes``; launches keep an older, smaller piece while they need it."""
    key = (card.index, card.device.resets)
    found = _scratch.get(key)
    if found is None or found.size_bytes < size_bytes:
        wanted = max(LEAST_BYTES, 1 << (size_bytes - 1).bit_length())
        sticks = wanted // 128
        layout = SpyreTensorLayout((sticks, 64), (64, 1), "SEN169_FP16")
        storage = card.allocate(wanted)
        found = _scratch[key] = SpyreTensor("scratch", (sticks * 64,), "float16", layout, storage)
    return found


MAX_CALLS = 16384
_prepared: LruCache[Key, CachedCall | NeedsRelayout | LoweringError] = LruCache(MAX_CALLS)


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
    found = _prepared.get(key)
    if found is None:
        call = EagerCall(name, lowering, parameters, operands, buffers, card, target, target_buffer)
        found = _prepared_or_error(call)
        _prepared.put(key, found)
    if isinstance(found, LoweringError):
        raise found
    if isinstance(found, NeedsRelayout):
        again = [_relayout_operand(o) if k in found.operands else o for k, o in enumerate(operands)]
        return run(name, lowering, again, parameters, target)
    return _launch(found, card, operands, buffers, target_buffer)


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
    parts: list[object] = [name, parameters, card.index, card.device.resets]
    for operand, buffer in zip(operands, buffers, strict=True):
        if isinstance(operand, ScalarOperand):
            parts.append(operand.dtype)
        elif buffer is not None:
            parts.append(key_of(operand, buffer))
    if target is not None and target_buffer is not None:
        aliases = tuple(k for k, b in enumerate(buffers) if b is target_buffer)
        parts.append((*key_of(target, target_buffer), aliases))
    return tuple(parts)


def _relayout_operand(operand: Operand) -> Operand:
    return operand if isinstance(operand, ScalarOperand) else relayout(operand)


def _launch(
    prepared: CachedCall,
    card: FlexDevice,
    operands: Sequence[Operand],
    buffers: Sequence[DeviceBuffer | None],
    target_buffer: DeviceBuffer | None,
) -> tuple[torch.Tensor, ...]:
    recipe = prepared.recipe
    memory: list[SpyreTensor] = []
    for operand, buffer in zip(operands, buffers, strict=True):
        if isinstance(operand, ScalarOperand):
            memory.append(number_on_card(card, operand.value, operand.dtype))
        elif buffer is not None and buffer.base is not None:
            memory.append(buffer.base)
    memory += [number_on_card(card, c.number, c.dtype) for c in recipe.constants]
    offsets = [*prepared.offsets_bytes[: len(operands)], *[0] * len(recipe.constants)]
    if recipe.into_target:
        assert target_buffer is not None
        memory.append(_written(target_buffer))
        offsets.append(prepared.offsets_bytes[-1])
    results = []
    for base in recipe.results:
        result, buffer = allocate_based(card, base)
        memory.append(_written(buffer))
        results.append(result)
    if recipe.scratch_bytes:
        memory.append(scratch_memory(card, recipe.scratch_bytes))
    offsets += [0] * (len(memory) - len(offsets))
    addresses = [m.address_bytes + o for m, o in zip(memory, offsets, strict=True)]
    recipe.program.launch(card.streams.current, addresses, memory)
    return tuple(results)


def _written(buffer: DeviceBuffer) -> SpyreTensor:
    """The memory of a buffer, all of which a program may change."""
    assert buffer.base is not None
    buffer.zero_padded = False
    return buffer.base
