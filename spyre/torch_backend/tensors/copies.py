"""Copies between CPU tensors and the card, and by DMA within a card.

Copies run on the current stream of the tensor's card. On the way down the whole storage is copied
and viewed on the host; on the way up a tensor that is its whole storage is converted by DMA
directly, a view is merged into its storage on the host. Copies within a card that no operation of
the cores can express go through the host: elements keep their bits, for the copy they are integers
of their size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from spyre.dtypes import FORMATS, NO_CODE, FormatKind, find_host_dtype
from spyre.hw.memory import DeviceTensor
from spyre.layout import contiguous_strides
from spyre.runtime.arguments import HostTensor
from spyre.runtime.dma import host_like
from spyre.runtime.flex import to_device_plan, to_host_plan
from spyre.torch_backend.compat import ON_CARD, TO_CARD, TO_HOST, in_range, profiled
from spyre.torch_backend.device import DTYPES, check_int64, name_of
from spyre.torch_backend.tensors.allocation import allocate_on, default_base, storage_elements
from spyre.torch_backend.tensors.buffer import DeviceBuffer, StorageLayout, buffer_of

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexDevice, JobPlan, Work

SMALL_BYTES = 1 << 16
"""Sources up to this size are copied at once where the stream is idle, which takes less time than a
job; else on the host, so that the caller need not wait for the stream."""


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor with the elements, sizes, strides and offset of ``tensor``; waits."""
    return view_of(host_storage(buffer_of(tensor)), tensor)


def fetched(source: torch.Tensor) -> torch.Tensor | None:
    """A new CPU tensor with the elements of one that is all of its storage; None for others.
    Waits.
    """
    buffer = buffer_of(source)
    whole_base = whole_target(buffer, source)
    if whole_base is None:
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
    """Overwrite a CPU tensor with ``source``, broadcast and converted as torch does; waits.

    A contiguous target of the same sizes and dtype gets the elements of a whole storage straight
    from the card.
    """
    buffer = buffer_of(source)
    whole_base = whole_target(buffer, source)
    alike = target.dtype == source.dtype and target.size() == source.size()
    if whole_base is None or buffer.base is None or not (alike and target.is_contiguous()):
        target.copy_(to_host(source))
        return
    stream = buffer.card.streams.current
    with profiled(TO_HOST):
        plan = to_host_plan(whole_base, host_tensor(target.detach()))
        stream.copy_waiting(plan, [buffer.memory])


def view_of(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """The CPU tensor over ``storage`` with dtype, sizes, strides and offset of ``like``."""
    empty = torch.empty(0, dtype=like.dtype, device="cpu")
    return empty.set_(storage, like.storage_offset(), like.size(), like.stride())


def host_storage(buffer: DeviceBuffer) -> torch.UntypedStorage:
    """A copy of a whole storage on the host, in the bytes torch expects there; waits."""
    storage, plan = _to_host_storage(buffer)
    if plan is not None:
        with profiled(TO_HOST):
            buffer.card.streams.current.copy_waiting(plan, [buffer.memory])
    return storage


def start_host_storage(buffer: DeviceBuffer) -> tuple[torch.UntypedStorage, Work | None]:
    """As `host_storage`, enqueued on the current stream: the bytes are there when the copy has
    ended, where there is one.
    """
    storage, plan = _to_host_storage(buffer)
    if plan is None:
        return storage, None
    with profiled(TO_HOST):
        return storage, buffer.card.streams.current.copy(plan, [buffer.memory])


def _to_host_storage(buffer: DeviceBuffer) -> tuple[torch.UntypedStorage, JobPlan | None]:
    """The storage and the copy that fills it, if it does not hold the bytes already."""
    if buffer.raw is not None:
        return _bytes_storage(buffer.raw.copy(), buffer.host_bytes), None
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


def _bytes_storage(content: np.ndarray, host_bytes: int) -> torch.UntypedStorage:
    if content.size < host_bytes:
        content = np.concatenate([content, np.zeros(host_bytes - content.size, np.uint8)])
    return torch.from_numpy(content).untyped_storage()


def from_host(tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
    """Overwrite ``tensor`` (on the card) with ``source`` (on the CPU), broadcast to its sizes.

    Values are converted to the tensor's dtype first, as torch does. Bytes written to a storage
    without a layout say nothing about the tensor they are part of: they wait for it. Without
    ``non_blocking`` the source may change as soon as this returns.
    """
    if tensor.numel() == 0:
        return
    if source._is_zerotensor():
        source = torch.zeros_like(source)
    source = source.detach().resolve_conj().resolve_neg()
    if source.dtype != tensor.dtype:
        source = source.to(tensor.dtype)
    source = source.expand(tensor.size())
    buffer = buffer_of(tensor)
    if buffer.base is None and not (buffer.raw is not None and tensor.dtype is torch.uint8):
        lay_out_for(buffer, tensor)
    target = whole_target(buffer, tensor)
    if target is not None:
        _upload(buffer, target, source, non_blocking)
    else:
        merged, copy = start_host_storage(buffer)
        if copy is not None:  # an error from before is for who reads, not for who writes
            buffer.card.streams.current.wait_for(copy)
        view_of(merged, tensor).copy_(source)
        write_storage(buffer, merged)


def write_storage(buffer: DeviceBuffer, content: torch.UntypedStorage) -> None:
    """Overwrite a whole storage; ``content`` is not looked at after this returns."""
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
    _upload(buffer, buffer.tensor, view, True)


def lay_out_for(buffer: DeviceBuffer, tensor: torch.Tensor) -> None:
    """Give a storage without a base one that suits ``tensor``, with what it holds."""
    content = buffer.raw
    name = name_of(tensor.dtype)
    base = _base_for(buffer, tensor, name)
    buffer.place(base)
    buffer.raw = None
    if content is not None:
        write_storage(buffer, _bytes_storage(content, buffer.host_bytes))


def _base_for(buffer: DeviceBuffer, tensor: torch.Tensor, name: str) -> StorageLayout:
    size, stride = tuple(tensor.size()), tuple(tensor.stride())
    elements = buffer.host_bytes // tensor.dtype.itemsize
    if tensor.storage_offset() == 0 and storage_elements(size, stride) == elements:
        return default_base(size, stride, name)
    return default_base((elements,), (1,), name)


def whole_target(buffer: DeviceBuffer, tensor: torch.Tensor) -> DeviceTensor | None:
    """The base as a copy onto ``tensor`` sees it, if the tensor is all of its storage."""
    base = buffer.base
    if base is None or DTYPES[base.dtype] != tensor.dtype or tensor.storage_offset():
        return None
    size, stride = tuple(tensor.size()), tuple(tensor.stride())
    if (size, stride) == (base.shape, base.strides):
        return buffer.tensor
    return None


@in_range(TO_CARD)
def _upload(
    buffer: DeviceBuffer, target: DeviceTensor, source: torch.Tensor, non_blocking: bool
) -> None:
    check_int64(source)
    stream, kept = buffer.card.streams.current, [buffer.memory]
    is_small = source.untyped_storage().nbytes() <= SMALL_BYTES
    plan = to_device_plan(host_tensor(source), target)
    buffer.zero_padded = True
    if is_small and stream.copied_at_once(plan, kept):
        return
    if is_small and not non_blocking:
        stream.copy(to_device_plan(host_tensor(source.clone()), target), kept)
        return
    work = stream.copy(plan, kept)
    if not non_blocking:
        stream.wait_for(work)


def host_tensor(source: torch.Tensor) -> HostTensor:
    """A CPU tensor as the runtime sees it, sharing its memory."""
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

__all__ = [
    "contiguous_strides",
    "download",
    "from_host",
    "host_storage",
    "host_tensor",
    "lay_out_for",
    "start_host_storage",
    "to_host",
    "view_of",
    "whole_target",
    "write_storage",
]

_RAW = {
    row.bits: (row.name, row.code_dtype)
    for row in FORMATS.values()
    if row.kind is FormatKind.SIGNED and row.transfer_code != NO_CODE
}
"""Signed format and host dtype that copies move elements of so many bits as."""


def relayout(tensor: torch.Tensor, card: FlexDevice | None = None) -> torch.Tensor:
    """A contiguous copy in default layout on ``card`` (its own); enqueued there, where the bits can
    be moved as they are. The host waits for what has to come from another card.
    """
    size = tuple(tensor.size())
    chosen = buffer_of(tensor).card if card is None else card
    copy = allocate_on(chosen, size, contiguous_strides(size), tensor.dtype)
    if tensor.numel():
        move(tensor, copy)
    return copy


def move(source: torch.Tensor, target: torch.Tensor) -> None:
    """Elements of ``source`` onto ``target``, a whole storage in an ordinary layout; sizes and
    dtype are the same, the card may be another. Bits are kept where the source's can be moved.
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
    """True if DMA can move the elements' bits to and from the host: an ordinary layout, seen in the
    dtype it was made for.
    """
    buffer = buffer_of(tensor)
    base = buffer.base
    return base is not None and DTYPES[base.dtype] == tensor.dtype and is_ordinary(buffer)


def is_ordinary(buffer: DeviceBuffer) -> bool:
    """True if DMA can move the bits of its elements."""
    return buffer.base is not None and buffer.base.layout.element_arrangement == "STANDARD"


def is_whole(tensor: torch.Tensor) -> bool:
    """True if the tensor is all of a storage whose bits DMA can move."""
    return moves_bits(tensor) and whole_target(buffer_of(tensor), tensor) is not None


def assemble(target: torch.Tensor, parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Overwrite views of ``target``'s storage with tensors of the same sizes and dtype.

    ``parts``: (view, source), all on one card; `moves_bits` holds for the target. Everything is
    enqueued on the current stream: the storage comes down, the sources' elements go to their
    places in it, and it goes up again.
    """
    reassemble(buffer_of(target), parts)


def reassemble(
    buffer: DeviceBuffer, parts: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
) -> None:
    """`assemble` of the storage itself; without parts it is padded with zeros after that."""
    raw = raw_tensor(buffer)
    host = host_like(raw)
    stream = buffer.card.streams.current
    stream.copy(to_host_plan(raw, host), [buffer.memory])
    for view, source in parts:
        extents = (tuple(view.size()), tuple(view.stride()), view.storage_offset())
        host_view = HostTensor(host.name, host.dtype_name, *extents, host.storage)
        source_buffer = _whole_buffer(source)
        stream.copy(to_host_plan(raw_tensor(source_buffer), host_view), [source_buffer.memory])
    stream.copy(to_device_plan(host, raw), [buffer.memory])
    buffer.zero_padded = True


def upload(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
    """`from_host`, which has to wait where the target is a part of its storage; here the elements
    go to memory of their own first, and from there to their places, all enqueued.
    """
    buffer = buffer_of(target)
    if not moves_bits(target) or is_whole(target):
        from_host(target, source, non_blocking)
    elif target.numel():
        size = tuple(target.size())
        staged = allocate_on(buffer.card, size, contiguous_strides(size), target.dtype)
        from_host(staged, source, non_blocking)
        assemble(target, [(target, staged)])


def _whole_buffer(source: torch.Tensor) -> DeviceBuffer:
    """The buffer of ``source``, if that is all of its storage, else of a copy."""
    return buffer_of(source if is_whole(source) else relayout(source))


def raw_tensor(buffer: DeviceBuffer) -> DeviceTensor:
    """Its tensor with the elements as integers of the same size."""
    tensor = buffer.tensor
    device_format, name = _RAW[tensor.layout.data_format.bits]
    layout = replace(tensor.layout, device_dtype=device_format)
    return replace(tensor, layout=layout, dtype=name)
