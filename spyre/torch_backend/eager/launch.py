"""Running eager operations: found in the cache, or lowered and compiled, then launched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES, FormatKind, find_stored_format
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.lru_cache import LruCache
from spyre.runtime.arguments import HostTensor
from spyre.runtime.flex import to_device_plan
from spyre.torch_backend.compat import TO_CARD, is_observed, profiled
from spyre.torch_backend.device import DTYPES, different_devices, name_of
from spyre.torch_backend.eager.compile import (
    CachedCall,
    EagerCall,
    Operand,
    Relayout,
    ScalarOperand,
    prepare,
)
from spyre.torch_backend.program import (
    ConstantArgument,
    Ints,
    LoweringError,
    LoweringFunction,
    Value,
    current_recorder,
    device_format,
)
from spyre.torch_backend.tensors import (
    DeviceBuffer,
    StorageLayout,
    allocate_based,
    allocate_on,
    buffer_of,
    default_base,
    lay_out_for,
    relayout,
)

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice

MAX_CALLS = 16384
Key = tuple[object, ...]
_calls: LruCache[Key, CachedCall | Relayout | LoweringError] = LruCache(MAX_CALLS)
"""Prepared call, conversion of layouts or error, by the key of a call's operands."""


def run(
    name: str,
    lowering: LoweringFunction,
    operands: Sequence[Operand],
    parameters: tuple[Any, ...] = (),
    target: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Run an operation and return its results as new tensors, or () if ``target`` got the result.

    At least one operand is a tensor, none is empty.
    """
    if (recorder := current_recorder()) is not None:
        return recorder(name, lowering, operands, parameters, target)
    buffers = [ready_buffer(o) if isinstance(o, torch.Tensor) else None for o in operands]
    card = next(b.card for b in buffers if b is not None)
    into = None if target is None else (target, ready_buffer(target))
    for buffer in buffers if into is None else (*buffers, into[1]):
        if buffer is not None and buffer.card is not card:
            raise different_devices(f"spyre:{card.index}", f"spyre:{buffer.card.index}")
    call = EagerCall(name, lowering, parameters, operands, buffers, card, into)
    key = _key(call)
    cached = _calls.get(key)
    if cached is None:
        cached = _prepared_or_error(call)
        _calls.put(key, cached)
    if isinstance(cached, LoweringError):
        raise cached
    if isinstance(cached, frozenset):
        copies = [
            relayout(o) if k in cached and isinstance(o, torch.Tensor) else o
            for k, o in enumerate(operands)
        ]
        return run(name, lowering, copies, parameters, target)
    arguments = _operand_memory(call, cached[0].constants)
    return _launch(cached, card, arguments, None if into is None else into[1])


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(x: torch.Tensor) -> bool:
    """Return True if torch takes x for channels last: strides grow from channels to batch."""
    if x.dim() not in _CHANNELS_LAST or not x.numel():
        return False
    least = 1
    for dim in (1, *range(x.dim() - 1, 1, -1)):
        if x.stride(dim) < least:
            return False
        least = x.stride(dim) * x.shape[dim]
    return bool(x.stride(0) >= least > x.stride(1))


def in_format_of(x: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """``result``, of the rank of ``x``, channels last if ``x`` is: torch's rule for images."""
    if not is_channels_last(x):
        return result
    return result.contiguous(memory_format=_CHANNELS_LAST[x.dim()])


def run_like(
    images: Sequence[torch.Tensor], name: str, lowering: LoweringFunction, *rest: Any
) -> tuple[torch.Tensor, ...]:
    """`run`; the first result is channels last if one of the images is."""
    if not any(map(is_channels_last, images)):
        return run(name, lowering, *rest)

    def permuted(*args: Any) -> tuple[Value, ...]:
        results = lowering(*args)
        first, *others = results if isinstance(results, Sequence) else [results]
        return first.permuted((0, *range(2, len(first.sizes)), 1)), *others

    first, *others = run(f"{name}, channels last", permuted, *rest)
    return first.movedim(-1, 1), *others


def ready_buffer(tensor: torch.Tensor) -> DeviceBuffer:
    """The buffer of a tensor that is about to be used on the card: it has a base."""
    buffer = buffer_of(tensor)
    if buffer.base is None and buffer.host_bytes:
        lay_out_for(buffer, tensor)
    return buffer


def _prepared_or_error(call: EagerCall) -> CachedCall | Relayout | LoweringError:
    """Prepare a call; results that cannot be written straight to the target are new tensors."""
    try:
        return prepare(call)
    except LoweringError as error:
        if call.target is None:
            return error
    return _prepared_or_error(replace(call, target=None))


def _key(call: EagerCall) -> Key:
    # a reset of the card forgets its programs: they are compiled again under a new number
    parts: list[object] = [call.name, call.parameters, call.card.index, call.card.device.resets]
    for operand, buffer in zip(call.operands, call.buffers, strict=True):
        if isinstance(operand, ScalarOperand):
            parts.append(operand.dtype)
        elif buffer is not None:
            parts.append(_tensor_key(operand, buffer))
    if call.target is not None:
        # a target that is an operand too may not be written before all of it has been read
        aliases = tuple(k for k, b in enumerate(call.buffers) if b is call.target[1])
        parts.append((*_tensor_key(*call.target), aliases))
    return tuple(parts)


def _tensor_key(tensor: torch.Tensor, buffer: DeviceBuffer) -> Key:
    """All properties of a tensor that a program depends on, except its address."""
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        buffer.layout_id,
        buffer.zero_padded,
    )


def _operand_memory(call: EagerCall, constants: Sequence[ConstantArgument]) -> list[DeviceBuffer]:
    """The first arguments of a call's program: operands and constants."""
    memory: list[DeviceBuffer] = []
    for operand, buffer in zip(call.operands, call.buffers, strict=True):
        if isinstance(operand, ScalarOperand):
            memory.append(number_on_card(call.card, operand.value, operand.dtype))
        elif buffer is not None:
            memory.append(buffer)
    memory += [number_on_card(call.card, c.number, c.dtype) for c in constants]
    return memory


def _launch(
    cached: CachedCall,
    card: FlexDevice,
    arguments: list[DeviceBuffer],
    target_buffer: DeviceBuffer | None = None,
    made: Made | None = None,
) -> tuple[torch.Tensor, ...]:
    """Enqueue it over ``arguments``, to which results and scratch memory are added.

    ``made``: of the one result, if it is a view of all its elements.
    """
    program, offsets_bytes = cached
    recorded = _recorded_launches.get()
    operands = () if recorded is None else tuple(arguments)
    if program.into_target:
        assert target_buffer is not None
        target_buffer.zero_padded = False
        arguments.append(target_buffer)
    results = []
    for layout in program.results:
        result, buffer = allocate_based(card, layout, made)
        buffer.zero_padded = False
        arguments.append(buffer)
        results.append(result)
    if program.scratch_bytes:
        arguments.append(scratch_memory(card, program.scratch_bytes))
    addresses, memory = [], []
    for argument in arguments:
        addresses.append(argument.address_bytes)
        memory.append(argument.memory)
    for number, offset_bytes in offsets_bytes:
        addresses[number] += offset_bytes
    if recorded is not None:
        target = target_buffer if program.into_target else None
        recorded.append((cached, operands, target, results))
    program.compiled.launch(card.streams.current, tuple(addresses), memory)
    return tuple(results)


# --- calls that are like one before ---------------------------------------------------------------


RecordedLaunch = tuple[
    CachedCall, tuple[DeviceBuffer, ...], DeviceBuffer | None, list[torch.Tensor]
]
"""A launch: its program, operands and numbers, the target it writes to, and new tensors."""
RecordedLaunches = list[RecordedLaunch | None]
"""None for other work than launches."""
_recorded_launches: ContextVar[RecordedLaunches | None] = ContextVar(
    "recorded_launches", default=None
)


@contextmanager
def recording_launches() -> Iterator[RecordedLaunches]:
    """Record the launches of a block, also for an enclosing block."""
    recorded: RecordedLaunches = []
    token = _recorded_launches.set(recorded)
    try:
        yield recorded
    finally:
        _recorded_launches.reset(token)
        if (around := _recorded_launches.get()) is not None:
            around += recorded


def record_other_work() -> None:
    """Record work other than a launch: calls of this kind get no `LaunchRecord`."""
    if (recorded := _recorded_launches.get()) is not None:
        recorded.append(None)


Made = tuple[Ints, Ints, torch.dtype]
"""Sizes, strides and dtype of a new tensor."""


class LaunchRecord(msgspec.Struct, frozen=True):
    """The launch of a call, to be repeated for calls that differ in addresses only.

    ``operands``: of the program, by their position among the call's tensors and ``constants``.
    ``made``: the tensor that ATen makes for the result, or the view of it that the call returns;
    None if the program's result is returned unchanged, or the call has an ``out``.
    """

    cached: CachedCall
    operands: Ints
    constants: Sequence[DeviceBuffer] = ()
    made: Made | None = None

    def launch(
        self, buffers: Sequence[DeviceBuffer], target_buffer: DeviceBuffer | None = None
    ) -> tuple[torch.Tensor, ...]:
        """The result over the tensors in ``buffers``; none if it goes to the target's."""
        arguments = [*map((*buffers, *self.constants).__getitem__, self.operands)]
        card = buffers[0].card
        if self.made is None or not self.cached[0].into_target:
            return _launch(self.cached, card, arguments, target_buffer, self.made)
        result = allocate_on(card, *self.made)
        _launch(self.cached, card, arguments, buffer_of(result))
        return (result,)


MAX_RECORDS = 4096
launch_records: LruCache[Key, LaunchRecord] = LruCache(MAX_RECORDS)


def flat(args: Sequence[Any]) -> Sequence[Any]:
    """The arguments; lists value by value, and how many there are."""
    for value in args:
        if isinstance(value, (list, tuple)):
            break
    else:
        return args
    values: list[Any] = []
    for value in args:
        if isinstance(value, (list, tuple)):
            values += (*value, len(value))
        else:
            values.append(value)
    return values


Results = tuple[torch.Tensor, ...]
KnownCall = tuple[Key, list[DeviceBuffer], int, DeviceBuffer | None]
"""A call: its key in `launch_records`, which has all that its launch depends on except addresses,
the buffers of its tensor arguments, how many different tensors these are, and the buffer of
``out``.
"""


def known_call(
    function: object, args: Sequence[Any], target: torch.Tensor | None = None
) -> KnownCall | None:
    """The key of a call; None for tensors on the CPU, on several cards, or without a base."""
    buffers: list[DeviceBuffer] = []
    parts: list[object] = [function]
    tensors: list[int] = []
    for value in args if target is None else (*args, target):
        if isinstance(value, torch.Tensor):
            try:
                buffer: DeviceBuffer = value.untyped_storage()._spyre_buffer
            except AttributeError:
                return None
            buffers.append(buffer)
            if (base := buffer.base) is None or buffer.card is not buffers[0].card:
                return None
            tensors.append(id(value))
            offset = value.storage_offset()
            layout = base.layout_id
            # as of `_tensor_key`: every operation comes here
            parts += (value.dtype, value.shape, value.stride(), offset, layout, buffer.zero_padded)
        elif isinstance(value, float) and (value == 0 or value != value):
            return None  # equal to a zero of the other sign, or not even to itself
        elif isinstance(value, (list, tuple)):
            return known_call(function, flat(args), target)
        else:
            parts += (type(value), value)
    target_buffer = None
    if target is not None:
        target_buffer = buffers[-1]
        parts[-1] = None  # memory beyond its elements may be overwritten
        # which operands it may overlap with
        parts += map(buffers.index, buffers)
        buffers, tensors = buffers[:-1], tensors[:-1]
    distinct = len({*tensors})
    # Which of equal tensors is which operand is known of two only.
    if not distinct or distinct < len(tensors) > 2:
        return None
    card = buffers[0].card
    parts += (distinct, card.index, card.device.resets)
    return tuple(parts), buffers, distinct, target_buffer


def placement_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """Extents, address and layout of a tensor."""
    buffer = buffer_of(tensor)
    extents = (tensor.shape, tensor.stride(), tensor.storage_offset())
    return (*extents, buffer.address_bytes, buffer.layout_id)


def keep_record(known: KnownCall, result: torch.Tensor, launches: RecordedLaunches) -> None:
    """Record the launch that computed ``result`` for equal calls, if there was exactly one."""
    recorded = launches[0] if len(launches) == 1 else None
    if recorded is None:
        return
    cached, operands, target, results = recorded
    key, buffers, distinct, out = known
    made = None
    if out is not None:
        is_for_result = target is out
    elif len({*map(id, buffers)}) != distinct:
        return  # operands that share memory, which is not part of the key
    elif results:
        made = (tuple(result.shape), result.stride(), result.dtype)
        whole, is_alone = cached[0].results[0], [*map(buffer_of, results)] == [buffer_of(result)]
        if made == (whole.shape, whole.strides, DTYPES[whole.dtype]):
            is_for_result, made = results[0] is result or is_alone, None
        else:  # a view, or squeezed in place
            is_for_result = is_alone and _has_all_elements(result, whole)
    else:
        is_for_result = target is buffer_of(result)
        made = _new_tensor_of(result, key)
    constants = [operand for operand in operands if operand not in buffers]
    if not all(constant.is_constant for constant in constants):
        return  # an intermediate result
    positions = tuple(map((*buffers, *constants).index, operands))
    if is_for_result and (results or out or made):
        launch_records.put(key, LaunchRecord(cached, positions, constants, made))


def _has_all_elements(view: torch.Tensor, whole: StorageLayout) -> bool:
    """True if ``view`` has all elements of a result, in their order."""
    if not view.is_contiguous() or view.numel() != prod(whole.shape):
        return False
    return view.dtype is DTYPES[whole.dtype] and whole.strides == contiguous_strides(whole.shape)


def is_plain_call(args: Sequence[Any]) -> bool:
    """True if a composite operation over ``args`` may run as a launch: nothing observes its parts,
    wants gradients of them or resolves a negative view.
    """
    if current_recorder() is not None or is_observed():
        return False
    records = torch.is_grad_enabled()
    # a loop, since an interrupt that ends a generator would be lost
    for value in flat(args):
        if not isinstance(value, torch.Tensor):
            continue
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if value.layout is not torch.strided or value.is_neg():
            return False
        if records and value.requires_grad:
            return False
    return True


def repeated(function: object, args: Sequence[Any], run_anew: Callable[[], Results]) -> Results:
    """New tensors: those of the launch of an equal call of ``function`` before, else those of
    ``run_anew``, whose launch is recorded if there is exactly one.
    """
    known = known_call(function, args)
    if known is not None and (record := launch_records.get(known[0])) is not None:
        return record.launch(known[1])
    with recording_launches() as launches:
        results = run_anew()
    if known is not None and results:
        keep_record(known, results[0], launches)
    return results


def _new_tensor_of(result: torch.Tensor, key: Key) -> Made | None:
    """Return arguments of `allocate_on` for such a tensor; None if it cannot make it, or if more
    than the call's tensors may have decided the dtype.
    """
    made = (tuple(result.shape), result.stride(), result.dtype)
    usual = default_base(*made[:2], name_of(result.dtype))
    is_usual = not result.storage_offset() and buffer_of(result).base == usual
    return made if is_usual and result.dtype in key else None


# --- numbers and scratch memory on the card -------------------------------------------------------

MAX_SCALARS = 1024
_scalars: LruCache[tuple[int, int, float, str], DeviceBuffer] = LruCache(MAX_SCALARS)


def number_on_card(card: FlexDevice, number: float, dtype: str) -> DeviceBuffer:
    """Memory of a tensor of rank 0, with the number in every lane; cached for the next use."""
    key = (id(card), card.device.resets, number, dtype)
    if number != number or number == 0:
        key = (*key[:2], 0.0, f"{dtype} {number}")  # NaN is unequal to itself, -0 equal to 0
    return _scalars.get_or_make(key, lambda: _upload_scalar(card, number, dtype))


def _upload_scalar(card: FlexDevice, number: float, dtype: str) -> DeviceBuffer:
    """Through a copy as any other, so that it has the number mode's format."""
    stored = find_stored_format(device_format(dtype))
    lanes = stored.elements_per_stick
    layout = SpyreTensorLayout.from_host((lanes,), dtype)
    buffer = DeviceBuffer.uncounted(card, StorageLayout.of((lanes,), (1,), dtype, layout))
    kind = np.int32 if stored.kind is FormatKind.SIGNED else np.float32
    # float16's largest number becomes another in copies of float16, as in tensors
    is_largest = dtype == "float16" and abs(number) == np.finfo(np.float16).max
    values = np.full(lanes, number, np.float16 if is_largest else kind)
    host = HostTensor.from_array(f"{number:g}", values)
    stream = card.default_stream
    with profiled(TO_CARD):
        stream.wait_for(stream.copy(to_device_plan(host, buffer.tensor), [buffer.memory]))
    return buffer


MIN_SCRATCH_BYTES = 1 << 20
_scratch: dict[tuple[int, int], tuple[int, DeviceBuffer]] = {}
"""Bytes and memory, by card and its number of resets."""


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
