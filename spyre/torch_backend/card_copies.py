"""Copies within a card that no operation of the cores can express: through the host, by DMA.

Elements keep their bits: for the copy they are integers of their size.
"""

from __future__ import annotations

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
from spyre.torch_backend.host_copies import from_host, to_host
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


def _is_plain(base: SpyreTensor) -> bool:
    return base.layout.element_arrangement == "STANDARD"


def _raw(tensor: SpyreTensor) -> DeviceTensor:
    """The tensor with its elements as integers of the same size."""
    device_format, name = _RAW[tensor.layout.data_format.bits]
    layout = replace(tensor.layout, device_dtype=device_format)
    return replace(tensor.resolved, layout=layout, dtype=name)
