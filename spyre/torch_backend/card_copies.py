"""Copies within a card that no operation of the cores can express: through the host, by DMA.

Elements keep their bits: for the copy they are integers of their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from spyre.hw.device import DeviceTensor
from spyre.layout import contiguous_strides
from spyre.runtime.flex.copies import host_like, to_device_plan, to_host_plan
from spyre.runtime.flex.spyre_tensor import SpyreTensor
from spyre.runtime.host_tensor import HostTensor
from spyre.torch_backend.allocation import allocate_on
from spyre.torch_backend.device_buffer import buffer_of
from spyre.torch_backend.dtypes import DTYPES
from spyre.torch_backend.host_copies import from_host, to_host, whole_target
from spyre.torch_backend.profiling import ON_CARD, profiled

_RAW = {8: ("SENINT8", "int8"), 16: ("SENINT16", "int16"), 32: ("IEEE_INT32", "int32")}


def relaid(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in default layout; enqueued, where the bits can be moved as they are."""
    buffer = buffer_of(tensor)
    size = tuple(tensor.size())
    found = allocate_on(buffer.card, size, contiguous_strides(size), tensor.dtype)
    base, target = buffer.base, buffer_of(found).base
    if target is None:
        return found
    if base is None or DTYPES[base.dtype] != tensor.dtype or not _is_plain(base):
        from_host(found, to_host(tensor))
        return found
    source = _raw(base)
    host = host_like(source)
    view = HostTensor(
        host.name, host.dtype_name, size, tensor.stride(), tensor.storage_offset(), host.storage
    )
    stream = buffer.card.streams.current
    with profiled(ON_CARD):
        stream.launch(to_host_plan(source, host), [base])
        stream.launch(to_device_plan(view, _raw(target)), [target])
    return found


def moves_bits(tensor: torch.Tensor) -> bool:
    """True if DMA can move the elements' bits to and from the host: an ordinary layout, seen in the
    dtype it was made for.
    """
    base = buffer_of(tensor).base
    return base is not None and DTYPES[base.dtype] == tensor.dtype and _is_plain(base)


def assemble(target: torch.Tensor, parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Overwrite views of ``target``'s storage with tensors of the same sizes and dtype.

    ``parts``: (view, source), all on one card; `moves_bits` holds for the target. Everything is
    enqueued on the current stream: the storage comes down, the sources' elements go to their
    places in it, and it goes up again.
    """
    buffer = buffer_of(target)
    base = buffer.base
    assert base is not None
    raw = _raw(base)
    host = host_like(raw)
    stream = buffer.card.streams.current
    stream.launch(to_host_plan(raw, host), [base])
    for view, source in parts:
        place = (tuple(view.size()), tuple(view.stride()), view.storage_offset())
        seen = HostTensor(host.name, host.dtype_name, *place, host.storage)
        found = _whole_base(source)
        stream.launch(to_host_plan(_raw(found), seen), [found])
    stream.launch(to_device_plan(host, raw), [base])
    buffer.zero_padded = True


def upload(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
    """`from_host`, which has to wait where the target is a part of its storage; here the elements
    go to memory of their own first, and from there to their places, all enqueued.
    """
    buffer = buffer_of(target)
    if not moves_bits(target) or whole_target(buffer, target) is not None:
        from_host(target, source, non_blocking)
    elif target.numel():
        size = tuple(target.size())
        found = allocate_on(buffer.card, size, contiguous_strides(size), target.dtype)
        from_host(found, source, non_blocking)
        assemble(target, [(target, found)])


def _whole_base(source: torch.Tensor) -> SpyreTensor:
    """The base of ``source``, if that is all of its storage, else of a copy."""
    base = buffer_of(source).base
    size = tuple(source.size())
    whole = base is not None and (base.shape, base.strides) == (size, tuple(source.stride()))
    if base is not None and whole and moves_bits(source) and not source.storage_offset():
        return base
    found = buffer_of(relaid(source)).base
    assert found is not None
    return found


def _is_plain(base: SpyreTensor) -> bool:
    return base.layout.element_arrangement == "STANDARD"


def _raw(tensor: SpyreTensor) -> DeviceTensor:
    """The tensor with its elements as integers of the same size."""
    device_format, name = _RAW[tensor.layout.data_format.bits]
    layout = replace(tensor.layout, device_dtype=device_format)
    return replace(tensor.resolved, layout=layout, dtype=name)
