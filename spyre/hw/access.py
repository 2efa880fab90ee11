"""Where a tensor's elements lie, for planners: a footprint restricted to what kernels can read.

A *pitch* is the distance in bytes between neighbours along a dim: of sticks for a dim in the
tensor's stick, of elements for any other. Start addresses already hold a core's slice offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spyre.errors import JsonLocation, UnsupportedError
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.footprint import footprint
from spyre.mlir.operation import Operation, Tensor


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
        """True if the tensor keeps one value per stick: it does not vary along its stick dim."""
        return not self.tensor.holds(self.stick_dim)


def make_access(op: Operation, tensor: Tensor) -> Access:
    """Extents and pitches of ``tensor`` in ``op``.

    Raises UnsupportedError for sticks of several dims (packed formats) and for formats whose
    elements are not 16 or 32 bits wide.
    """
    stick_dim, lanes = _stick(op, tensor)
    area = footprint(op, tensor)
    return Access(tensor, stick_dim, lanes, area.pitch_bytes, area.stored, area.span_bytes)


def per_core(op: Operation, dim: str) -> int:
    """Elements of ``dim`` one core iterates."""
    return op.extents[dim] // op.slices.get(dim, 1)


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
