"""Tensors of torch-spyre on the card: new ones, views, resizing, and layout records.

torch-spyre keeps a layout, and the host extents it was made for, per tensor rather than per
storage: a compiled function may see one piece of memory in several layouts. Here that is a
`TensorRecord`, an attribute of the tensor. Aliases made in C++ (``detach``, ``Parameter(x)``,
``x.data``) have none; they get the storage's last record for a tensor of their extents, or the one
it was created with.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import torch
from msgspec.structs import replace

from spyre.frontend.formats import check_dtype
from spyre.frontend.layouts import FrontendLayout
from spyre.hw.memory import DeviceTensor
from spyre.layout import SpyreTensorLayout, contiguous_strides, device_view
from spyre.torch_backend.compat import CPU_KEYS, operator, reinterpret
from spyre.torch_backend.device import NAMES, card_at, current_device
from spyre.torch_backend.tensors import (
    DeviceBuffer,
    StorageLayout,
    buffer_of,
    set_storage,
    tensor_at,
)

Ints = tuple[int, ...]


class TensorRecord(msgspec.Struct, frozen=True):
    """A tensor's layout on the card. ``sizes``, ``strides``: host extents (elements) that copies
    between its whole memory and the host have.
    """

    layout: SpyreTensorLayout
    sizes: Ints
    strides: Ints

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled tensor takes its attributes along; on whatever device it is loaded, this one
        # means nothing, and loading must not need this package.
        return torch.Size, ((),)

    def __deepcopy__(self, memo: Any) -> TensorRecord:
        return self


_records: WeakKeyDictionary[DeviceBuffer, dict[tuple[Any, ...], TensorRecord]] = WeakKeyDictionary()
"""Records of a storage: by (), the one it was created with; by the extents of views, whose extents
differ, the last one used by each."""


def record_of(tensor: torch.Tensor, buffer: DeviceBuffer | None = None) -> TensorRecord:
    """The layout record of a tensor, whose buffer is given or found; RuntimeError without one."""
    buffer = buffer or buffer_of(tensor)
    own = tensor.__dict__.get("_spyre_record")
    # ``x.data = y`` and ``set_`` give a tensor another storage and leave its attributes.
    if own is not None and own[0] == buffer.pointer:
        record: TensorRecord = own[1]
        return record
    home = _records.get(buffer)
    if home is None:
        if tensor.numel():
            raise RuntimeError("Error: Device tensor does not have SpyreTensorLayout")
        return _default_record(tensor)
    return home.get(_extents(tensor), home[()])


def _extents(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.storage_offset()


def _default_record(tensor: torch.Tensor) -> TensorRecord:
    size = tuple(tensor.size())
    layout = FrontendLayout(size, tensor.dtype).inner
    return TensorRecord(layout, size, contiguous_strides(size))


def set_record(
    tensor: torch.Tensor, record: TensorRecord, buffer: DeviceBuffer | None = None
) -> torch.Tensor:
    """Set the layout record of ``tensor``, whose buffer is given or found; return the tensor."""
    buffer = buffer or buffer_of(tensor)
    tensor._spyre_record = (buffer.pointer, record)
    home = _records.get(buffer)
    if home is None:
        _records[buffer] = {(): record}
    elif record != home[()] or len(home) > 1:
        home[_extents(tensor)] = record
    return tensor


def on_card(tensor: torch.Tensor) -> DeviceTensor:
    """A tensor's whole allocation in the layout of its record, for copies and launches.

    Tensors of rank 0 are rows of one element.
    """
    buffer = buffer_of(tensor)
    record, name = record_of(tensor, buffer), NAMES[tensor.dtype]
    sizes, strides = (record.sizes, record.strides) if record.sizes else ((1,), (1,))
    return DeviceTensor("tensor", buffer.address_bytes, record.layout, name, sizes, strides)


def extent_bytes(tensor: torch.Tensor) -> range | None:
    """The bytes of its storage on the card from a view's first stick to its last.

    None where constant pitches cannot describe the view.
    """
    memory, sizes, strides = on_card(tensor), tuple(tensor.size()), tuple(tensor.stride())
    home = memory.layout, memory.sizes, memory.strides
    view = device_view(*home, sizes, strides, tensor.storage_offset())
    if view is None:
        return None
    return range(view.offset_bytes, view.offset_bytes + view.span_bytes)


# --- new tensors ----------------------------------------------------------------------------------


def new_tensor(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    layout: FrontendLayout,
    device: Any = None,
) -> torch.Tensor:
    """A tensor in fresh memory of ``layout``, which may hold anything."""
    sizes, strides = tuple(map(int, size)), tuple(map(int, stride))
    if min(sizes, default=0) < 0:
        raise RuntimeError(
            f"Trying to create tensor with negative dimension {min(sizes)}: {list(sizes)}"
        )
    check_dtype(dtype)
    card = card_at(_index(device))
    record = TensorRecord(layout.inner, sizes, strides)
    base = StorageLayout.of(sizes, strides, NAMES[dtype], layout.inner)
    buffer = DeviceBuffer(card, base.size_bytes)
    if base.size_bytes:
        buffer.allocate(base)
    elements = base.size_bytes // dtype.itemsize
    whole = tensor_at(buffer.pointer, (elements,), (1,), dtype, card.index)
    whole.untyped_storage()._spyre_buffer = buffer
    return set_record(reinterpret(whole, sizes, strides, 0), record, buffer)


def _index(device: Any) -> int:
    index = None if device is None else torch.device(device).index
    return current_device() if index is None else int(index)


def check_options(layout: Any, pin_memory: Any, memory_format: Any = None) -> None:
    """RuntimeError for options of a new tensor that the card has nothing for."""
    if layout not in (None, torch.strided):
        raise RuntimeError("Non strided layout not supported")
    if pin_memory:
        raise RuntimeError("Pin memory can only be on CPU")
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        name = _MEMORY_FORMATS.get(memory_format, str(memory_format))
        raise RuntimeError(f"Spyre backend only supports contiguous memory format, got: {name}")


_MEMORY_FORMATS = {torch.channels_last: "ChannelsLast", torch.channels_last_3d: "ChannelsLast3d"}


def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: Any = None,
) -> torch.Tensor:
    """aten::empty.memory_format: contiguous, in default layout."""
    chosen = dtype or torch.get_default_dtype()
    check_options(layout, pin_memory, memory_format)
    check_dtype(chosen)
    default = FrontendLayout(tuple(size), chosen)
    return new_tensor(size, contiguous_strides(size), chosen, default, device)


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """aten::empty_strided: dims in their order on the card, whatever their strides."""
    chosen = dtype or torch.get_default_dtype()
    check_options(layout, pin_memory)
    check_dtype(chosen)
    ordered = FrontendLayout(tuple(size), tuple(stride), chosen, tuple(range(len(size))))
    return new_tensor(size, stride, chosen, ordered, device)


def spyre_empty_with_layout(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device_layout: FrontendLayout
) -> torch.Tensor:
    """A new tensor of these host extents in a layout."""
    return new_tensor(size, stride, dtype, device_layout)


def empty_with_layout(
    size: Sequence[int],
    device_layout: FrontendLayout,
    dtype: torch.dtype | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: Any = None,
) -> torch.Tensor:
    """A new contiguous tensor in a layout."""
    if device is not None and torch.device(device).type != "spyre":
        raise RuntimeError("Expected device.is_privateuseone() to be true, but got false.")
    check_options(None, pin_memory, memory_format)
    chosen = dtype or torch.get_default_dtype()
    return new_tensor(size, contiguous_strides(size), chosen, device_layout, device)


# --- views ----------------------------------------------------------------------------------------


def _redispatched(name: str, *args: Any) -> torch.Tensor:
    """ATen's own kernel for the CPU, which only touches sizes and strides."""
    result: torch.Tensor = operator(name).redispatch(CPU_KEYS, *args)
    return result


def view(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """aten::view, aten::_unsafe_view."""
    return set_record(_redispatched("view", tensor, size), record_of(tensor))


def reshape_alias(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """aten::_reshape_alias."""
    return set_record(_redispatched("_reshape_alias", tensor, size, stride), record_of(tensor))


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """aten::alias."""
    extents = (tensor.size(), tensor.stride(), tensor.storage_offset())
    return set_record(_redispatched("as_strided", tensor, *extents), record_of(tensor))


def unfold(tensor: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    """aten::unfold."""
    dim = dimension + tensor.dim() if dimension < 0 else dimension
    extent = tensor.size(dim)
    if size <= 0:
        raise RuntimeError(f"unfold: size must be positive, got {size}")
    if step <= 0:
        raise RuntimeError(f"unfold: step must be positive, got {step}")
    if size > extent:
        raise RuntimeError(
            f"unfold: maximum size for tensor at dimension {dim} is {extent} but size is {size}"
        )
    sizes, strides = list(tensor.size()), list(tensor.stride())
    within = strides[dim]
    sizes[dim], strides[dim] = (extent - size) // step + 1, within * step
    viewed = (*sizes, size), (*strides, within), tensor.storage_offset()
    return set_record(_redispatched("as_strided", tensor, *viewed), record_of(tensor))


def as_strided(
    tensor: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """aten::as_strided."""
    layout = FrontendLayout.of(record_of(tensor).layout)
    return as_strided_with_layout(tensor, size, stride, storage_offset, layout)


def as_strided_with_layout(
    tensor: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None,
    device_layout: FrontendLayout,
) -> torch.Tensor:
    """A view in a layout."""
    offset = tensor.storage_offset() if storage_offset is None else storage_offset
    viewed = _redispatched("as_strided", tensor, size, stride, offset)
    return set_record(viewed, _seen_in(tensor, device_layout, size, stride))


def reinterpret_tensor(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset_increment: int = 0
) -> torch.Tensor:
    """Other extents over the same storage, unknown to autograd; the offset is added.

    Of tensors on other devices too: compiled graphs with fallbacks have some.
    """
    seen = reinterpret(tensor, size, stride, offset_increment)
    return set_record(seen, record_of(tensor)) if tensor.device.type == "spyre" else seen


def reinterpret_tensor_with_layout(
    tensor: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset_increment: int,
    stl: FrontendLayout,
) -> torch.Tensor:
    """As `reinterpret_tensor`, in a layout."""
    seen = reinterpret(tensor, size, stride, offset_increment)
    if tensor.device.type != "spyre":
        return seen
    return set_record(seen, _seen_in(tensor, stl, size, stride))


def _seen_in(
    tensor: torch.Tensor, layout: FrontendLayout, size: Sequence[int], stride: Sequence[int]
) -> TensorRecord:
    """In the layout it has, host extents stay those of its memory; else they are the view's."""
    record = record_of(tensor)
    if layout.inner == record.layout:
        return record
    return TensorRecord(layout.inner, tuple(size), tuple(stride))


def get_spyre_tensor_layout(tensor: torch.Tensor) -> FrontendLayout:
    """The layout of a tensor on the card."""
    if tensor.device.type != "spyre":
        raise RuntimeError("Expected tensor.is_privateuseone() to be true, but got false.")
    return FrontendLayout.of(record_of(tensor).layout)


def set_spyre_tensor_layout(tensor: torch.Tensor, stl: FrontendLayout) -> None:
    """Set the layout of the bytes in the tensor's memory, which stay."""
    set_record(tensor, replace(record_of(tensor), layout=stl.inner))


# --- resize_ --------------------------------------------------------------------------------------


def resize(tensor: torch.Tensor, size: Sequence[int], *, memory_format: Any = None) -> torch.Tensor:
    """aten::resize_: in place where nothing has to move, else through the host."""
    sizes = tuple(map(int, size))
    if tuple(tensor.size()) == sizes and tensor.is_contiguous():
        return tensor
    if memory_format is torch.preserve_format:
        raise RuntimeError("aten::resize_ does not support MemoryFormat::Preserve")
    if memory_format not in (None, torch.contiguous_format):
        raise RuntimeError("aten::resize_ on Spyre only supports contiguous memory format")
    strides, layout = contiguous_strides(sizes), FrontendLayout(sizes, tensor.dtype)
    record = TensorRecord(layout.inner, sizes, strides)
    if _fits_in_place(tensor, record):
        set_storage(tensor, tensor.untyped_storage(), tensor.storage_offset(), sizes, strides)
        return set_record(tensor, record)
    content = tensor.cpu().resize_(sizes)
    new = new_tensor(sizes, strides, tensor.dtype, layout, tensor.device)
    set_storage(tensor, new.untyped_storage(), 0, sizes, strides)
    return set_record(tensor, record).copy_(content)


def _fits_in_place(tensor: torch.Tensor, record: TensorRecord) -> bool:
    """Longer rows would turn padding of a stick into elements."""
    elements = prod(record.sizes)
    size_bytes = max(record.layout.device_bytes, elements * tensor.itemsize)
    rows_fit = not record.sizes or not tensor.dim() or record.sizes[-1] <= tensor.size(-1)
    fits = size_bytes <= tensor.untyped_storage().nbytes() and elements <= tensor.numel()
    return fits and rows_fit


KERNELS: dict[str, Any] = {
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "set_.source_Storage_storage_offset": set_storage,
    "resize_": resize,
    "view": view,
    "_unsafe_view": view,
    "_reshape_alias": reshape_alias,
    "alias": alias,
    "as_strided": as_strided,
    "unfold": unfold,
}
"""Kernels that the extension registers with torch's dispatcher, by aten name and overload."""
