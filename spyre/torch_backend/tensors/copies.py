"""Copies between CPU tensors and the card, and by DMA within a card.

Copies run on the current stream of the tensor's card. Copies to the host transfer the whole storage
and view it there. Copies to the card convert a tensor that is its whole storage by DMA, and merge a
view into its storage on the host. Copies within a card that no operation of the cores can express
go through the host; they treat elements as integers of the same size, which keeps all bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from msgspec.structs import replace

from spyre.dtypes import FORMATS, NO_CODE, FormatKind, find_host_dtype
from spyre.hw.memory import DeviceTensor
from spyre.layout import contiguous_strides
from spyre.runtime.arguments import HostTensor
from spyre.runtime.dma import host_like
from spyre.runtime.flex import to_device_plan, to_host_plan
from spyre.torch_backend.compat import ON_CARD, TO_CARD, TO_HOST, neg_view, profiled
from spyre.torch_backend.device import DTYPES, PARTS, check_int64, name_of
from spyre.torch_backend.tensors.allocation import (
    DeviceBuffer,
    allocate_on,
    buffer_of,
    storage_elements,
    usual_base,
)

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice, JobPlan, Work

SMALL_BYTES = 1 << 16
"""Sources up to this size are copied at once if the stream is idle, which takes less time than a
job; else they are first copied on the host, so that the caller need not wait for the stream."""


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor with the elements, sizes, strides and offset of ``tensor``; waits."""
    return with_bits_of(tensor, view_of(host_storage(buffer_of(tensor)), tensor))


def with_bits_of(tensor: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    """Return ``host`` as conjugate or negative if ``tensor`` is."""
    host = host.conj() if tensor.is_conj() else host
    return neg_view(host) if tensor.is_neg() else host


def fetched(source: torch.Tensor) -> torch.Tensor | None:
    """Return a new CPU tensor with the elements of ``source``, or None if it is not its whole
    storage. Waits.
    """
    buffer = buffer_of(source)
    whole_base = whole_target(buffer, source)
    if whole_base is None or source.is_neg():
        return None
    size, stride = whole_base.sizes, whole_base.strides
    target = torch.empty_strided(size, stride, dtype=source.dtype, device="cpu")
    dtype = find_host_dtype(whole_base.dtype)
    content = (ctypes.c_char * target.untyped_storage().nbytes()).from_address(target.data_ptr())
    storage = np.frombuffer(content, dtype.storage_dtype)
    host = HostTensor("tensor", dtype.name, size, stride, 0, storage)
    with profiled(TO_HOST):
        stream = buffer.card.streams.current
        stream.copy_waiting(to_host_plan(whole_base, host), [buffer.memory])
    return target


def download(source: torch.Tensor, target: torch.Tensor) -> None:
    """Overwrite a CPU tensor with ``source``, broadcast and converted as in torch; waits.

    If ``source`` is its whole storage and the target is contiguous, with the same sizes and dtype,
    the elements are copied directly.
    """
    buffer = buffer_of(source)
    whole_base = whole_target(buffer, source)
    alike = target.dtype == source.dtype and target.size() == source.size() and not source.is_neg()
    if whole_base is None or buffer.base is None or not (alike and target.is_contiguous()):
        target.copy_(to_host(source))
        return
    stream = buffer.card.streams.current
    with profiled(TO_HOST):
        plan = to_host_plan(whole_base, host_tensor(target.detach()))
        stream.copy_waiting(plan, [buffer.memory])


def view_of(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor over ``storage`` with dtype, sizes, strides and offset of ``like``."""
    empty = torch.empty(0, dtype=like.dtype, device="cpu")
    return empty.set_(storage, like.storage_offset(), like.size(), like.stride())


def host_storage(buffer: DeviceBuffer) -> torch.UntypedStorage:
    """Return a host copy of a whole storage; waits."""
    storage, plan = _to_host_storage(buffer)
    if plan is not None:
        with profiled(TO_HOST):
            buffer.card.streams.current.copy_waiting(plan, [buffer.memory])
    return storage


def start_host_storage(buffer: DeviceBuffer) -> tuple[torch.UntypedStorage, Work | None]:
    """Return a host storage and the copy that fills it, enqueued on the current stream; None if the
    bytes are there already.
    """
    storage, plan = _to_host_storage(buffer)
    if plan is None:
        return storage, None
    with profiled(TO_HOST):
        return storage, buffer.card.streams.current.copy(plan, [buffer.memory])


def _to_host_storage(buffer: DeviceBuffer) -> tuple[torch.UntypedStorage, JobPlan | None]:
    """Return a host storage and the plan of the copy that fills it; None if it is filled."""
    if buffer.raw is not None:
        return bytes_storage(buffer.raw.copy(), buffer.host_bytes), None
    if buffer.base is None:
        return torch.UntypedStorage(buffer.host_bytes), None
    tensor = buffer.tensor
    host = host_like(tensor)
    content = host.storage.view(np.uint8)
    if content.size < buffer.host_bytes:
        content = np.zeros(buffer.host_bytes, np.uint8)
        seen = content[: host.storage.nbytes].view(host.storage.dtype)
        host = HostTensor(host.name, host.dtype_name, host.shape, host.strides, 0, seen)
    return torch.from_numpy(content).untyped_storage(), to_host_plan(tensor, host)


def bytes_storage(content: np.ndarray, host_bytes: int) -> torch.UntypedStorage:
    """Return a host storage with ``content`` and zeros behind it."""
    if content.size < host_bytes:
        content = np.concatenate([content, np.zeros(host_bytes - content.size, np.uint8)])
    return torch.from_numpy(content).untyped_storage()


def from_host(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
    """Overwrite ``tensor`` (on the card) with ``source`` (on the CPU), broadcast to its sizes.

    Values are converted to the tensor's dtype first, as in torch. Bytes written to a storage
    without a base stay raw. Unless ``non_blocking``, the source may change after the return.
    """
    check_broadcast(source, tensor)
    if tensor.numel() == 0:
        return
    if source._is_zerotensor():
        source = torch.zeros_like(source)
    source = source.detach().resolve_conj().resolve_neg()
    if source.dtype != tensor.dtype:
        source = source.to(tensor.dtype)
    source = source.expand(tensor.size())
    if tensor.dtype in PARTS:
        if tensor.is_conj():
            tensor, source = tensor.conj(), source.conj().resolve_conj()
        tensor, source = torch.view_as_real(tensor), torch.view_as_real(source)
    buffer = buffer_of(tensor)
    if buffer.base is None and not (buffer.raw is not None and tensor.dtype is torch.uint8):
        lay_out_for(buffer, tensor)
    target = whole_target(buffer, tensor)
    if target is not None:
        with profiled(TO_CARD):
            _upload(buffer, target, source, non_blocking)
    else:
        merged, copy = start_host_storage(buffer)
        if copy is not None:  # earlier errors are raised when the tensor is read, not here
            buffer.card.streams.current.wait_for(copy)
        view_of(merged, tensor).copy_(source)
        write_storage(buffer, merged)


def check_broadcast(source: torch.Tensor, target: torch.Tensor) -> None:
    """RuntimeError with torch's text if a copy to ``target`` cannot broadcast ``source``."""
    sizes, wanted = source.size(), target.size()
    if sizes == wanted:
        return
    pairs = zip(reversed(sizes), reversed(wanted), strict=False)
    if len(sizes) > len(wanted) or any(n not in (1, m) for n, m in pairs):
        torch.empty(wanted, device="cpu").copy_(torch.zeros((), device="cpu").expand(sizes))


def write_storage(buffer: DeviceBuffer, content: torch.UntypedStorage) -> None:
    """Overwrite a whole storage; ``content`` may change after the return."""
    base = buffer.base
    if base is None:
        if buffer.host_bytes:
            buffer.raw = (
                torch.empty(0, dtype=torch.uint8, device="cpu").set_(content).numpy().copy()
            )
        return
    elements = storage_elements(base.shape, base.strides)
    flat = torch.empty(0, dtype=DTYPES[base.dtype], device="cpu").set_(
        content, 0, (elements,), (1,)
    )
    view = flat.as_strided(base.shape, base.strides)
    with profiled(TO_CARD):
        _upload(buffer, buffer.tensor, view, True)


def lay_out_for(buffer: DeviceBuffer, tensor: torch.Tensor) -> None:
    """Give a storage without a base the base for ``tensor``, and write its raw bytes."""
    content = buffer.raw
    size, stride = tuple(tensor.size()), tuple(tensor.stride())
    elements = buffer.host_bytes // tensor.dtype.itemsize
    if tensor.storage_offset() or storage_elements(size, stride) != elements:
        size, stride = (elements,), (1,)
    buffer.allocate(usual_base(size, stride, tensor.dtype))
    buffer.raw = None
    if content is not None:
        write_storage(buffer, bytes_storage(content, buffer.host_bytes))


def whole_target(buffer: DeviceBuffer, tensor: torch.Tensor) -> DeviceTensor | None:
    """Return the buffer's base as a tensor if ``tensor`` is its whole storage, else None."""
    base = buffer.base
    if base is None or DTYPES[base.dtype] != tensor.dtype or tensor.storage_offset():
        return None
    extents = (tuple(tensor.size()), tuple(tensor.stride()))
    return buffer.tensor if extents == (base.shape, base.strides) else None


def _upload(
    buffer: DeviceBuffer, target: DeviceTensor, source: torch.Tensor, non_blocking: bool
) -> None:
    check_int64(source)
    stream, memory = buffer.card.streams.current, [buffer.memory]
    is_small = source.untyped_storage().nbytes() <= SMALL_BYTES
    plan = to_device_plan(host_tensor(source), target)
    buffer.zero_padded = True
    if is_small and stream.copied_at_once(plan, memory):
        return
    if is_small and not non_blocking:
        stream.copy(to_device_plan(host_tensor(source.clone()), target), memory)
        return
    work = stream.copy(plan, memory)
    if not non_blocking:
        stream.wait_for(work)


def host_tensor(source: torch.Tensor) -> HostTensor:
    """Return a CPU tensor as the runtime's `HostTensor`, which shares its memory."""
    name = name_of(source.dtype)
    bits = _BIT_PATTERNS.get(source.dtype)
    elements = storage_elements(tuple(source.size()), tuple(source.stride()))
    flat = source.as_strided((elements,), (1,), source.storage_offset())
    # Tensor.numpy() would forbid to resize the tensor from then on.
    storage = np.from_dlpack(flat.detach() if bits is None else flat.detach().view(bits))
    if bits is not None:
        storage = storage.view(np.dtype(_UNSIGNED[storage.dtype.itemsize]))
    return HostTensor("tensor", name, tuple(source.size()), tuple(source.stride()), 0, storage)


_BIT_PATTERNS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2fnuz: torch.int8,
}
_UNSIGNED = {1: "uint8", 2: "uint16"}

_RAW = {
    row.bits: (row.name, row.code_dtype)
    for row in FORMATS.values()
    if row.kind is FormatKind.SIGNED and row.transfer_code != NO_CODE
}
"""Signed format and host dtype that copies move elements of so many bits as."""


def relayout(tensor: torch.Tensor, card: FlexDevice | None = None) -> torch.Tensor:
    """Return a contiguous copy in default layout on ``card``, by default the tensor's. The copy is
    enqueued if `moves_bits`; the host waits for elements of another card.
    """
    size = tuple(tensor.size())
    chosen = buffer_of(tensor).card if card is None else card
    copy = allocate_on(chosen, size, contiguous_strides(size), tensor.dtype)
    if tensor.numel():
        move(tensor, copy)
    return copy


def move(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy ``source`` to ``target``, a whole storage in an ordinary layout, of the same sizes and
    dtype but possibly on another card. Bits are kept if `moves_bits` holds for ``source``.
    """
    buffer, target_buffer = buffer_of(source), buffer_of(target)
    if not moves_bits(source):
        from_host(target, to_host(source))
        return
    raw = raw_tensor(buffer)
    host = host_like(raw)
    extents = (tuple(source.size()), source.stride(), source.storage_offset())
    view = HostTensor(host.name, host.dtype_name, *extents, host.storage)
    stream = buffer.card.streams.current
    with profiled(ON_CARD):
        stream.copy(to_host_plan(raw, host), [buffer.memory])
        if target_buffer.card is not buffer.card:
            stream.synchronize()
        target_stream = target_buffer.card.streams.current
        target_plan = to_device_plan(view, raw_tensor(target_buffer))
        target_stream.copy(target_plan, [target_buffer.memory])
    target_buffer.zero_padded = True


def moves_bits(tensor: torch.Tensor) -> bool:
    """Return True if DMA can copy the elements' bits: the layout is ordinary and the tensor has the
    base's dtype.
    """
    buffer = buffer_of(tensor)
    base = buffer.base
    return base is not None and DTYPES[base.dtype] == tensor.dtype and is_ordinary(buffer)


def is_ordinary(buffer: DeviceBuffer) -> bool:
    """Return True if DMA can copy the bits of the buffer's elements."""
    return buffer.base is not None and buffer.base.layout.element_arrangement == "STANDARD"


def is_whole(tensor: torch.Tensor) -> bool:
    """Return True if the tensor is a whole storage whose bits DMA can copy."""
    return moves_bits(tensor) and whole_target(buffer_of(tensor), tensor) is not None


def assemble(buffer: DeviceBuffer, parts: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()) -> None:
    """Overwrite views of a storage with tensors of the same sizes and dtype; pad its sticks.

    ``parts``: (view, source) pairs, all on one card; `is_ordinary` holds for the buffer. All copies
    are enqueued on the current stream: the storage to the host, the sources into it, and the
    storage back to the card.
    """
    raw = raw_tensor(buffer)
    host = host_like(raw)
    stream = buffer.card.streams.current
    stream.copy(to_host_plan(raw, host), [buffer.memory])
    for view, source in parts:
        extents = (tuple(view.size()), tuple(view.stride()), view.storage_offset())
        host_view = HostTensor(host.name, host.dtype_name, *extents, host.storage)
        whole = buffer_of(source if is_whole(source) else relayout(source))
        stream.copy(to_host_plan(raw_tensor(whole), host_view), [whole.memory])
    stream.copy(to_device_plan(host, raw), [buffer.memory])
    buffer.zero_padded = True


def upload(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
    """Like `from_host`, but enqueue the copies also if the target is a part of its storage: the
    elements are first copied to a separate tensor on the card.
    """
    buffer = buffer_of(target)
    if not moves_bits(target) or is_whole(target):
        from_host(target, source, non_blocking)
    elif target.numel():
        size = tuple(target.size())
        staged = allocate_on(buffer.card, size, contiguous_strides(size), target.dtype)
        from_host(staged, source, non_blocking)
        assemble(buffer, [(target, staged)])
    else:
        check_broadcast(source, target)


def raw_tensor(buffer: DeviceBuffer) -> DeviceTensor:
    """Return the buffer's tensor with the elements as integers of the same size."""
    tensor = buffer.tensor
    device_format, name = _RAW[tensor.layout.data_format.bits]
    layout = replace(tensor.layout, device_dtype=device_format)
    return replace(tensor, layout=layout, dtype=name)
