"""Convolutions and pooling on host shapes, as descriptions for the builder.

Dims are those of the frontends: convolution mb, i, j, out, in, ki, kj, pooling mb, i, j, out, ki,
kj (SuperDSC reference §1); host tensors are [mb, i, j, channels], kernels [ki, kj, in, out], in
their default layouts. The spatial dims count output positions; the input's extents follow from the
windows (operations reference §7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from spyre.errors import BundleError
from spyre.mlir.builder.operations import OperandSpec, OperationSpec
from spyre.mlir.builder.recipes import HostOperand, elements_per_stick, host_tensor, round_up
from spyre.mlir.operation.operation import Padding, Window

SPATIAL = ("i", "j")
WINDOW_DIMS = ("ki", "kj")


class Windows(msgspec.Struct, frozen=True):
    """Windows over the two spatial axes: sizes, strides, dilations, and padding (front, back).

    ``kind``: storage of the padding in the input's memory; default: the frontends', which do not
    store padding, and use a full span without padding.
    """

    sizes: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    kind: Padding | None = None

    def along(self, axis: int, extent: int) -> tuple[Window, int]:
        """The window over an input of ``extent`` elements, and its output positions."""
        front, back = self.padding[axis]
        window = Window(
            WINDOW_DIMS[axis],
            extent + front + back,
            self.strides[axis],
            self.dilations[axis],
            front,
            back,
        )
        positions = (window.total - window.span(1, self.sizes[axis])) // window.stride + 1
        if positions < 1:
            found = f"{window.total} elements under a window of {self.sizes[axis]}"
            raise BundleError("SPY290", "no window fits the input", found=found)
        return window, positions

    @property
    def padding_kind(self) -> Padding:
        """The kind of padding the input's node names."""
        padded = any(front or back for front, back in self.padding)
        return self.kind or (Padding.IMPLIED if padded else Padding.FULL_SPAN_UNNEEDED)


def conv2d(
    shape: Sequence[int],
    channels: int,
    windows: Windows,
    source: HostOperand,
    kernel: HostOperand,
    target: HostOperand,
    splits: Mapping[str, int] | None = None,
    name: str = "conv2d",
) -> OperationSpec:
    """``target`` [mb, i', j', ``channels``] = ``source`` of host ``shape`` [mb, i, j, in] under
    ``kernel`` [ki, kj, in, out].

    The channels are rounded up to sticks; as with matmul, the padding of ``source``'s channels or
    the kernel's rows there hold zero.
    """
    batch, height, width, inner = shape
    found, positions = _windows(windows, (height, width))
    stick = elements_per_stick(source.data_format)
    extents = {
        "mb": batch,
        **positions,
        "out": round_up(channels, stick),
        "in": round_up(inner, stick),
        **dict(zip(WINDOW_DIMS, windows.sizes, strict=True)),
    }
    return OperationSpec(
        name=name,
        extents=extents,
        inputs=[
            replace(_windowed(source, "in", windows), role="INPUT"),
            replace(host_tensor(kernel, (*WINDOW_DIMS, "in", "out")), role="KERNEL"),
        ],
        outputs=[replace(host_tensor(target, ("mb", *SPATIAL, "out")), role="OUTPUT")],
        splits=splits or {},
        data_format=source.data_format,
        unit="pt",
        windows=found,
    )


def pool(
    name: str,
    shape: Sequence[int],
    windows: Windows,
    source: HostOperand,
    target: HostOperand,
    splits: Mapping[str, int] | None = None,
    constants: Mapping[str, int] | None = None,
) -> OperationSpec:
    """Pooling ``name`` of ``source`` of host ``shape`` [mb, i, j, out]."""
    batch, height, width, channels = shape
    found, positions = _windows(windows, (height, width))
    extents = {
        "mb": batch,
        **positions,
        "out": round_up(channels, elements_per_stick(source.data_format)),
        **dict(zip(WINDOW_DIMS, windows.sizes, strict=True)),
    }
    return OperationSpec(
        name=name,
        extents=extents,
        inputs=[replace(_windowed(source, "out", windows), role="INPUT")],
        outputs=[replace(host_tensor(target, ("mb", *SPATIAL, "out")), role="OUTPUT")],
        splits=splits or {},
        constants=constants or {},
        data_format=source.data_format,
        windows=found,
    )


def _windows(
    windows: Windows, extents: tuple[int, int]
) -> tuple[dict[str, Window], dict[str, int]]:
    """Windows and output positions by spatial dim."""
    pairs = {dim: windows.along(axis, extents[axis]) for axis, dim in enumerate(SPATIAL)}
    found = {dim: window for dim, (window, _) in pairs.items()}
    return found, {dim: positions for dim, (_, positions) in pairs.items()}


def _windowed(source: HostOperand, channels: str, windows: Windows) -> OperandSpec:
    tensor = host_tensor(source, ("mb", *SPATIAL, channels))
    return replace(tensor, padding=dict.fromkeys(SPATIAL, windows.padding_kind))
