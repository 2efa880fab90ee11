"""``copy_tensor`` and ``fill_tensor`` of the extension: DMA with conversion, and filled memory.

A copy converts between the host format of the CPU tensor's dtype and the card's of the other's.
Which pairs there are is a table of the runtime (35 of them); all others are refused by name.
Views are merged into their memory on the host, and viewed there on the way back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from spyre.dtypes import FORMATS, FormatKind, NumericRules, codes_to_bytes, encode_copied
from spyre.frontend.formats import DataFormats, formats_of, get_device_dtype
from spyre.frontend.tensors import on_card, record_of
from spyre.hw.memory import DeviceTensor
from spyre.layout import is_parted, transfer_geometry
from spyre.runtime.flex import JobPlan, bytes_to_device, to_device_plan, to_host_plan
from spyre.torch_backend.compat import TO_CARD, TO_HOST, is_dense, profiled
from spyre.torch_backend.device import NAMES
from spyre.torch_backend.tensors import buffer_of, host_tensor

_PAIRS_BY_SOURCE = {
    "IEEE_FP32": (
        *("IEEE_FP32", "SEN169_FP16", "BFLOAT16", "SEN143_FP8", "SENINT4", "SENINT8"),
        "SENUINT2",
    ),
    "SEN169_FP16": (
        *("IEEE_FP32", "SEN169_FP16", "SENINT16", "BOOL", "IEEE_FP16", "IEEE_INT64", "BFLOAT16"),
    ),
    "IEEE_FP16": ("IEEE_FP32", "BFLOAT16", "SEN169_FP16"),
    "BFLOAT16": ("IEEE_FP32", "SEN169_FP16"),
    "SEN143_FP8": ("IEEE_FP32", "SEN143_FP8"),
    "SENINT4": ("IEEE_FP32", "SENINT4"),
    "SENINT8": ("IEEE_FP32", "SENINT8"),
    "SENINT16": ("SEN169_FP16",),
    "SENUINT2": ("IEEE_FP32",),
    "BOOL": ("SEN169_FP16",),
    "IEEE_INT64": ("SEN169_FP16", "IEEE_INT32", "SENUINT32"),
    "IEEE_INT32": ("IEEE_INT64", "IEEE_INT32"),
    "SENUINT32": ("IEEE_INT64", "SENUINT32"),
}
PAIRS = frozenset((a, b) for a, targets in _PAIRS_BY_SOURCE.items() for b in targets)
"""Formats that a copy converts between: (source, target)."""


def _is_direct(on_host: str, stored: str) -> bool:
    """Whether DMA converts; the other pairs go by way of a dtype on the host."""
    host, card = FORMATS[on_host], FORMATS[stored]
    integers = (FormatKind.SIGNED, FormatKind.UNSIGNED)
    if host.kind in integers and card.kind in integers:
        return True
    of_host = host.kind is FormatKind.BOOLEAN or (host.is_float and host.bits > 8)
    return on_host == stored or (card.computed and of_host)


def _way(cpu: torch.Tensor, card: torch.Tensor) -> torch.dtype:
    """The dtype on the host that DMA converts."""
    on_host, stored = formats_of(cpu.dtype)[0].name, formats_of(card.dtype)[1].name
    if _is_direct(on_host, stored):
        return cpu.dtype
    return torch.float32 if FORMATS[stored].computed else card.dtype


def _converted(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Fractions are cut off, and numbers beyond an integer dtype are its nearest."""
    if source.dtype == dtype:
        return source
    if source.is_floating_point() and not (dtype.is_floating_point or dtype is torch.bool):
        limits = torch.iinfo(dtype)
        source = source.nan_to_num(0.0).clamp(limits.min, limits.max)
    return source.to(dtype)


def copy_tensor(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Overwrite ``dst`` with ``self``, exactly one of which is on the card; returns ``dst``.

    On the current stream of the card; waits unless ``non_blocking``. RuntimeError for a pair of
    formats without a conversion.
    """
    ways = {("cpu", "spyre"): (_to_card, TO_CARD), ("spyre", "cpu"): (_to_host, TO_HOST)}
    way, name = ways.get((self.device.type, dst.device.type), (None, ""))
    if way is None:
        raise RuntimeError(f"Unsupported copy types: src on {self.device} dst on {dst.device}")
    if dst.numel():
        with profiled(name):
            way(self, dst, non_blocking)
    return dst


def _check_pair(cpu: torch.Tensor, card: torch.Tensor, to_card: bool) -> None:
    on_host, stored = formats_of(cpu.dtype)[0], formats_of(card.dtype)[1]
    names = str(cpu.dtype).removeprefix("torch."), str(card.dtype).removeprefix("torch.")
    if on_host is DataFormats.INVALID:
        raise RuntimeError(f"Unsupported CPU tensor dtype for DMA transfer: {names[0]}")
    source, target = (on_host, stored) if to_card else (stored, on_host)
    if (source.name, target.name) not in PAIRS:
        raise RuntimeError(
            f"Unsupported DCI data format conversion: src={source.value} dst={target.value} "
            f"(cpu_type={names[0]}, dev_type={names[1]})"
        )


def _to_card(source: torch.Tensor, dst: torch.Tensor, non_blocking: bool) -> None:
    _check_pair(source, dst, to_card=True)
    source = source.detach().resolve_conj().resolve_neg().expand(dst.size())
    record = record_of(dst)
    if dst.storage_offset() or tuple(dst.size()) != record.sizes:
        # A part of its memory: the rest stays what it is.
        source = _merged(source, dst)
    _upload(_converted(source, _way(source, dst)), dst, non_blocking)


def _merged(source: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    parent = _whole(dst, dst.dtype)
    _part(parent, dst).copy_(source)
    return parent


def _is_parted(memory: DeviceTensor, strides: tuple[int, ...]) -> bool:
    """Whether a layout walks host dims as one that do not continue each other on this host."""
    if strides == memory.strides:
        return False
    geometry = transfer_geometry(memory.layout, memory.sizes, memory.strides)
    return is_parted(geometry, strides)


def _upload(source: torch.Tensor, dst: torch.Tensor, non_blocking: bool) -> None:
    target = on_card(dst)
    source = source.reshape(target.sizes)
    if _is_parted(target, source.stride()):
        together = torch.empty_strided(target.sizes, target.strides, dtype=source.dtype)
        source = together.copy_(source)
    _enqueue(to_device_plan(host_tensor(source), target), dst, non_blocking)


def _enqueue(plan: JobPlan, tensor: torch.Tensor, non_blocking: bool) -> None:
    buffer = buffer_of(tensor)
    stream = buffer.card.streams.current
    stream.copy(plan, [buffer.memory])
    if not non_blocking:
        stream.synchronize()


def _to_host(source: torch.Tensor, dst: torch.Tensor, non_blocking: bool) -> None:
    _check_pair(dst, source, to_card=False)
    record = record_of(source)
    is_whole = (tuple(source.size()), tuple(source.stride())) == (record.sizes, record.strides)
    way = _way(dst, source)
    fits = way == dst.dtype and is_dense(dst) and dst.size() == source.size()
    fits = fits and not source.storage_offset()
    if is_whole and fits and not (dst.dim() and _is_parted(on_card(source), dst.stride())):
        _download(source, dst.detach(), non_blocking)
        return
    dst.copy_(_converted(_part(_whole(source, way), source), dst.dtype))


def _whole(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor with all that the memory of a tensor holds, in the extents of its record."""
    memory = on_card(tensor)
    elements = max(_span(memory.sizes, memory.strides), _reach(tensor))
    parent = torch.zeros(elements, dtype=dtype).as_strided(memory.sizes, memory.strides)
    _download(tensor, parent, non_blocking=False)
    return parent


def _download(source: torch.Tensor, dst: torch.Tensor, non_blocking: bool) -> None:
    target = host_tensor(dst if dst.dim() else dst.reshape(1))
    _enqueue(to_host_plan(on_card(source), target), source, non_blocking)


def _part(parent: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """The elements of ``view`` among those of its memory."""
    return parent.as_strided(view.size(), view.stride(), view.storage_offset())


def _span(size: Any, stride: Any) -> int:
    return 1 + sum((int(n) - 1) * int(step) for n, step in zip(size, stride, strict=True))


def _reach(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) + _span(tensor.size(), tensor.stride())


def fill_tensor(self: torch.Tensor, value: float) -> torch.Tensor:
    """Write the code of ``value`` over the whole memory of a tensor, padding included."""
    if self.device.type != "spyre":
        raise RuntimeError("spyre_fill_tensor: tensor must be on spyre device")
    if not self.numel():
        raise RuntimeError("spyre_fill_tensor: cannot fill empty tensor")
    buffer = buffer_of(self)
    rules = buffer.card.device.numerics.transfer_rules
    pattern = _pattern(value, NAMES[self.dtype], get_device_dtype(self.dtype).name, rules)
    content = np.resize(pattern, buffer.host_bytes)
    plan = bytes_to_device(content, buffer.address_bytes, "tensor")
    buffer.card.streams.current.copy(plan, [buffer.memory])
    return self


def _pattern(value: float, dtype: str, data_format: str, rules: NumericRules) -> Any:
    """The bytes of one element, as a copy of a tensor with ``value`` would write them."""
    given = np.asarray([value], np.float64)
    return codes_to_bytes(encode_copied(given, dtype, data_format, rules), data_format)
