"""Where a tensor's elements lie, for planners: a footprint restricted to what kernels can read.

A *pitch* is the distance in bytes between neighbours along a dim: of sticks for a dim in the
tensor's stick, of elements for any other. Start addresses already hold a core's slice offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spyre.errors import JsonLocation, UnsupportedError
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.footprint import footprint, stick_elements
from spyre.mlir.operation import Operation, Tensor


@dataclass(frozen=True, slots=True)
class Access:
    """A tensor as the kernels see it.

    ``sticks``: elements of each stick dim in one stick. A *plain* stick has one dim and elements
    of 16 or 32 bits; only then ``stick_dim`` names it and ``lanes`` counts its elements, else they
    are empty and 0. ``pitch_bytes`` per held dim, ``stored`` extents in elements (of the whole
    tensor in HBM, per core in LX), ``span_bytes`` the distance from a core's start to the end of
    the last stick that core touches.
    """

    tensor: Tensor
    sticks: Mapping[str, int]
    stick_dim: str
    lanes: int
    pitch_bytes: Mapping[str, int]
    stored: Mapping[str, int]
    span_bytes: int

    def step_bytes(self, dim: str, elements: int) -> int:
        """Bytes that ``elements`` steps along ``dim`` advance (0 for a dim the tensor lacks).

        ``elements`` must be whole sticks along a stick dim.
        """
        if not self.tensor.holds(dim):
            return 0
        return self.pitch_bytes[dim] * (elements // self.sticks.get(dim, 1))

    @property
    def is_plain(self) -> bool:
        """True if the stick has one dim and elements of 16 or 32 bits."""
        return self.lanes > 0

    @property
    def is_lane(self) -> bool:
        """True if the tensor keeps one value per stick: it does not vary along its stick dim."""
        return not self.tensor.holds(self.stick_dim)


def make_access(op: Operation, tensor: Tensor) -> Access:
    """Extents, pitches and sticks of ``tensor`` in ``op``."""
    area = footprint(op, tensor)
    stick_dim, lanes = "", 0
    if len(tensor.stick_dims) == 1 and _has_plain_elements(tensor):
        stick_dim, lanes = tensor.stick_dims[0], tensor.stick_sizes[0]
    sticks = stick_elements(tensor)
    return Access(tensor, sticks, stick_dim, lanes, area.pitch_bytes, area.stored, area.span_bytes)


def require_plain(op: Operation, access: Access) -> None:
    """Raise UnsupportedError for sticks of several dims and elements not of 16 or 32 bits."""
    tensor = access.tensor
    location = JsonLocation(op.file, tensor.json_path)
    if len(tensor.stick_dims) != 1:
        raise UnsupportedError(
            "SPY521",
            f"{op.name}: {tensor.name} packs several dims into a stick",
            location,
            expected="one stick dim",
            found=f"{tensor.stick_dims} of sizes {tensor.stick_sizes}",
        )
    if not access.is_plain:
        raise UnsupportedError(
            "SPY522",
            f"{op.name}: {tensor.name} has elements that are not simulated yet",
            location,
            expected="16-bit elements, 64 per stick, or 32-bit elements, 32 per stick",
            found=f"{tensor.data_format}, {tensor.word_length_bytes} bytes, "
            f"{tensor.stick_sizes[0]} per stick",
        )


def _has_plain_elements(tensor: Tensor) -> bool:
    word = tensor.word_length_bytes
    return word in (2, 4) and tensor.stick_sizes[0] * word == STICK_BYTES


def per_core(op: Operation, dim: str) -> int:
    """Elements of ``dim`` one core iterates."""
    return op.extents[dim] // op.slices.get(dim, 1)
