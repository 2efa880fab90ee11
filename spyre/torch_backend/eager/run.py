"""Running eager operations: found in the cache, or lowered, compiled and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from spyre.torch_backend.allocation import allocate_based
from spyre.torch_backend.card_copies import relaid
from spyre.torch_backend.device_buffer import DeviceBuffer
from spyre.torch_backend.eager.operands import Key, Number, Operand, key_of, ready_buffer
from spyre.torch_backend.eager.prepare import Call, LoweringFunction, Prepared, Relay, prepare
from spyre.torch_backend.eager.recording import current_recorder
from spyre.torch_backend.eager.scalars import number_on_card
from spyre.torch_backend.eager.scratch_memory import scratch_memory
from spyre.torch_backend.program.value import NotExpressible
from spyre.torch_backend.recently_used import RecentlyUsed

if TYPE_CHECKING:
    from spyre.runtime.flex.flex_device import FlexDevice
    from spyre.runtime.flex.spyre_tensor import SpyreTensor

KEPT_CALLS = 16384
_prepared: RecentlyUsed[Key, Prepared | Relay | NotExpressible] = RecentlyUsed(KEPT_CALLS)


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
        call = Call(name, lowering, parameters, operands, buffers, card, target, target_buffer)
        found = _prepared_or_error(call)
        _prepared.put(key, found)
    if isinstance(found, NotExpressible):
        raise found
    if isinstance(found, Relay):
        again = [_relaid(o) if k in found.operands else o for k, o in enumerate(operands)]
        return run(name, lowering, again, parameters, target)
    return _launch(found, card, operands, buffers, target_buffer)


def _prepared_or_error(call: Call) -> Prepared | Relay | NotExpressible:
    """What a call runs; results that cannot be written straight to the target are new tensors."""
    try:
        return prepare(call)
    except NotExpressible as error:
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
        if isinstance(operand, Number):
            parts.append(operand.dtype)
        elif buffer is not None:
            parts.append(key_of(operand, buffer))
    if target is not None and target_buffer is not None:
        aliases = tuple(k for k, b in enumerate(buffers) if b is target_buffer)
        parts.append((*key_of(target, target_buffer), aliases))
    return tuple(parts)


def _relaid(operand: Operand) -> Operand:
    return operand if isinstance(operand, Number) else relaid(operand)


def _launch(
    prepared: Prepared,
    card: FlexDevice,
    operands: Sequence[Operand],
    buffers: Sequence[DeviceBuffer | None],
    target_buffer: DeviceBuffer | None,
) -> tuple[torch.Tensor, ...]:
    recipe = prepared.recipe
    memory: list[SpyreTensor] = []
    for operand, buffer in zip(operands, buffers, strict=True):
        if isinstance(operand, Number):
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
