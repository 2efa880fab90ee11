"""Data-conversion descriptors: a host ↔ device copy as plain loop nests.

What a copy between a host tensor and a device tensor does, all of it: its formats, the loop nests
that move elements, and on the way in the nests whose device positions become zero. The compiled
copies execute these descriptors and nothing else; they print as text (`str`) and as JSON. Pure and
immutable: any thread may use them. Rule: runtime reference §3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

DESCRIPTOR_NAME = "DCI-Tensor-0"

Ints = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StrideInfo:
    """One loop nest: element ``host_offset + Σ i·host_strides`` ↔ the same of the device.

    Everything innermost first and in elements; a host stride is 0 where the loop has one step or,
    on the way in, where all its steps read one host element.
    """

    sizes: Ints
    host_strides: Ints
    device_strides: Ints
    host_offset: int
    device_offset: int

    @property
    def host_range(self) -> tuple[int, int]:
        """Lowest and highest host element that the nest touches."""
        reaches = [(n - 1) * s for n, s in zip(self.sizes, self.host_strides, strict=True)]
        low = sum(r for r in reaches if r < 0)
        return self.host_offset + low, self.host_offset + sum(r for r in reaches if r > 0)


@dataclass(frozen=True, slots=True)
class ZeroFill:
    """Device positions without host element, zeroed on the way in: sizes and strides likewise."""

    sizes: Ints
    device_strides: Ints
    device_offset: int


@dataclass(frozen=True, slots=True)
class DataConversionInfo:
    """A copy of one tensor.

    ``host_format``/``device_format``: names in `spyre.dtypes.FORMATS`; ``input_shape`` and
    ``output_shape``: extents of source and destination, innermost first; ``nests``: every host
    element exactly once (but for expanded layouts, whose device positions are all written);
    ``zero_fill``: all other device positions, empty on the way out. ``element_arrangement`` is for
    the reader: its order of elements is part of the nests.
    """

    to_device: bool
    host_format: str
    device_format: str
    input_shape: Ints
    output_shape: Ints
    nests: tuple[StrideInfo, ...]
    zero_fill: tuple[ZeroFill, ...] = ()
    element_arrangement: str = "STANDARD"
    name: str = DESCRIPTOR_NAME

    @property
    def formats(self) -> tuple[str, str]:
        """Source and destination format."""
        pair = (self.host_format, self.device_format)
        return pair if self.to_device else pair[::-1]

    @property
    def host_range(self) -> tuple[int, int] | None:
        """Lowest and highest host element that the copy touches; None if it touches none."""
        if not self.nests:
            return None
        lows, highs = zip(*(nest.host_range for nest in self.nests), strict=True)
        return min(lows), max(highs)

    def moved(self, host_elements: int) -> DataConversionInfo:
        """The same copy with a host tensor that begins ``host_elements`` later."""
        if host_elements == 0:
            return self
        nests = (replace(n, host_offset=n.host_offset + host_elements) for n in self.nests)
        return replace(self, nests=tuple(nests))

    def to_json(self) -> dict[str, Any]:
        """JSON object in the key names of torch-spyre's descriptor; ``zero_fill`` is ours."""
        source, destination = self.formats
        return {
            "name": self.name,
            "isHostToSen": self.to_device,
            "dataformat_src": source,
            "dataformat_dst": destination,
            "input_shape": list(self.input_shape),
            "output_shape": list(self.output_shape),
            "element_arrangement": self.element_arrangement,
            "stride_infos": [_nest_json(nest, self.to_device) for nest in self.nests],
            "zero_fill": [_fill_json(fill) for fill in self.zero_fill],
        }

    def __str__(self) -> str:
        """Readable text: what is copied, then a block per nest; no newline at the end."""
        way = "host to device" if self.to_device else "device to host"
        source, destination = self.formats
        lines = [f"{self.name}: {way}, {source} to {destination}"]
        lines.append(f"  input {_numbers(self.input_shape)}, output {_numbers(self.output_shape)}")
        if self.element_arrangement != "STANDARD":
            lines.append(f"  element arrangement {self.element_arrangement}")
        for k, nest in enumerate(self.nests):
            lines += [f"nest {k}", f"  sizes          {_numbers(nest.sizes)}"]
            lines.append(f"  host strides   {_numbers(nest.host_strides)} from {nest.host_offset}")
            lines.append(_device_line(nest))
        for k, fill in enumerate(self.zero_fill):
            lines += [f"zero fill {k}", f"  sizes          {_numbers(fill.sizes)}"]
            lines.append(_device_line(fill))
        return "\n".join(lines)


def _device_line(nest: StrideInfo | ZeroFill) -> str:
    return f"  device strides {_numbers(nest.device_strides)} from {nest.device_offset}"


def _numbers(values: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, values)) + "]"


def _nest_json(nest: StrideInfo, to_device: bool) -> dict[str, Any]:
    host = (list(nest.host_strides), nest.host_offset)
    device = (list(nest.device_strides), nest.device_offset)
    source, destination = (host, device) if to_device else (device, host)
    return {
        "size_": list(nest.sizes),
        "stride_src_": source[0],
        "stride_dst_": destination[0],
        "offset_src_": source[1],
        "offset_dst_": destination[1],
    }


def _fill_json(fill: ZeroFill) -> dict[str, Any]:
    return {
        "size_": list(fill.sizes),
        "stride_dst_": list(fill.device_strides),
        "offset_dst_": fill.device_offset,
    }
