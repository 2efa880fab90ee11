"""Where a tensor's elements lie: extents and pitches by the core rule of SDSC reference §5.2.

A *pitch* is the distance in bytes between neighbours along a dim: of sticks for a dim in the
tensor's stick, of elements for any other. Start addresses already hold a core's slice offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spyre.errors import JsonLocation, UnsupportedError
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.operation import Component, Indirection, Operation, Tensor

RESTICKIFY = "ReStickifyOpHBM"


@dataclass(frozen=True, slots=True)
class Access:
    """A tensor as the kernels see it.

    ``stick_dim``: the one dim in its stick, ``lanes`` elements per stick. ``pitch_bytes`` per held
    dim, ``stored`` extents in elements (of the whole tensor in HBM, per core in LX), ``span_bytes``
    the distance from a core's start to the end of the last stick that core touches.
    """

    tensor: Tensor
    stick_dim: str
    lanes: int
    pitch_bytes: Mapping[str, int]
    stored: Mapping[str, int]
    span_bytes: int

    def step_bytes(self, dim: str, elements: int) -> int:
        """Bytes that ``elements`` steps along ``dim`` advance (0 for a dim the tensor lacks).

        ``elements`` must be whole sticks along the stick dim.
        """
        if not self.tensor.holds(dim):
            return 0
        pitch = self.pitch_bytes[dim]
        return pitch * (elements // self.lanes) if dim == self.stick_dim else pitch * elements

    @property
    def is_lane(self) -> bool:
        """True if the tensor keeps one value per stick (its stick dim has scale -2)."""
        return self.tensor.scale.get(self.stick_dim) == -2


def make_access(op: Operation, tensor: Tensor) -> Access:
    """Extents and pitches of ``tensor`` in ``op``.

    Raises UnsupportedError for sticks of several dims (packed formats) and for formats whose
    elements are not 16 or 32 bits wide.
    """
    stick_dim, lanes = _stick(op, tensor)
    stored: dict[str, int] = {}
    pitches: dict[str, int] = {}
    pitch = STICK_BYTES
    for dim in tensor.dims:
        extent = stored_extent(op, tensor, dim, lanes if dim == stick_dim else 1)
        stored[dim] = extent
        pitches[dim] = pitch
        pitch *= -(-extent // lanes) if dim == stick_dim else extent
    span = _span_bytes(op, tensor, stick_dim, lanes, pitches, stored)
    return Access(tensor, stick_dim, lanes, pitches, stored, span)


def per_core(op: Operation, dim: str) -> int:
    """Elements of ``dim`` one core iterates."""
    return op.extents[dim] // op.slices.get(dim, 1)


def stored_extent(op: Operation, tensor: Tensor, dim: str, lanes: int) -> int:
    """Elements the tensor stores along ``dim``; ``lanes`` is its stick size there, else 1."""
    scale = tensor.scale.get(dim, -1)
    if scale != 1:
        return lanes if scale == -2 else 1
    if dim in tensor.device_dim_sizes:
        return tensor.device_dim_sizes[dim]
    if tensor.indirection is Indirection.VALUE and tensor.max_dim_sizes.get(dim, -1) > 0:
        return tensor.max_dim_sizes[dim]
    local = tensor.component is Component.LX or tensor.per_core_in_hbm
    extent = per_core(op, dim) if local else op.extents[dim]
    gap = tensor.gap_elements.get(dim, 0)
    return extent - gap if _gap_is_padding(op, lanes, extent, gap) else extent + gap


def _gap_is_padding(op: Operation, lanes: int, extent: int, gap: int) -> bool:
    """SDSC reference §7: a padded restickify writes N rounded up and the excess as its gap."""
    return op.name == RESTICKIFY and lanes == 1 and 0 < gap < 64 and extent % 64 == 0


def _stick(op: Operation, tensor: Tensor) -> tuple[str, int]:
    location = JsonLocation(op.file, tensor.json_path)
    if len(tensor.stick_dims) != 1:
        raise UnsupportedError(
            "SPY521",
            f"{op.name}: {tensor.name} packs several dims into a stick",
            location,
            expected="one stick dim",
            found=f"{tensor.stick_dims} of sizes {tensor.stick_sizes}",
        )
    lanes = tensor.stick_sizes[0]
    if tensor.word_length_bytes not in (2, 4) or lanes * tensor.word_length_bytes != STICK_BYTES:
        raise UnsupportedError(
            "SPY522",
            f"{op.name}: {tensor.name} has elements that are not simulated yet",
            location,
            expected="16-bit elements, 64 per stick, or 32-bit elements, 32 per stick",
            found=f"{tensor.data_format}, {tensor.word_length_bytes} bytes, {lanes} per stick",
        )
    return tensor.stick_dims[0], lanes


def _span_bytes(
    op: Operation,
    tensor: Tensor,
    stick_dim: str,
    lanes: int,
    pitches: Mapping[str, int],
    stored: Mapping[str, int],
) -> int:
    span = STICK_BYTES
    for dim in tensor.dims:
        if not tensor.holds(dim) or dim not in op.extents:
            continue
        count = per_core(op, dim)
        if op.name == RESTICKIFY or tensor.indirection is Indirection.VALUE:
            count = min(count, stored[dim])
        sticks = -(-count // lanes) if dim == stick_dim else count
        span += (sticks - 1) * pitches[dim]
    return span
