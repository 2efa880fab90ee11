"""The dims that an operand walks in its memory, compared with the dims of the memory's layout."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from spyre.errors import Finding, Location, Severity
from spyre.mlir.operation import Operation, Tensor, footprint

LayoutDims = Sequence[tuple[int, int]]
"""Extent and stride in bytes of a layout's dims above the stick, outermost first."""


class TileDim(msgspec.Struct, frozen=True):
    """A dim that an operand walks: ``steps`` of ``pitch_bytes`` each, over all cores.

    A step is a stick along a stick dim, else an element. ``place``: index of the layout's dim that
    it walks, None where no layout is known or no dim fits. ``expected_bytes``: the pitch of that
    dim. ``is_wrong``: no dim of the layout has this pitch.
    """

    dim: str
    steps: int
    pitch_bytes: int
    place: int | None = None
    expected_bytes: int = 0
    is_wrong: bool = False

    def __str__(self) -> str:
        return f"{self.dim} in steps of {self.pitch_bytes:,} bytes"


def tile_dims(op: Operation, tensor: Tensor, layout: LayoutDims) -> tuple[TileDim, ...]:
    """The dims of ``tensor`` that have several steps, innermost first; ``layout`` may be empty."""
    sticks, pitches = tensor.sticks, footprint(op, tensor).pitch_bytes
    dims: list[TileDim] = []
    inner = len(layout)
    for dim in dict.fromkeys(tensor.dims):
        steps = -(-op.extents[dim] // sticks.get(dim, 1)) if tensor.holds(dim) else 1
        if steps == 1:
            continue
        pitch = pitches[dim]
        is_wrong = bool(layout) and not _is_step(pitch, dim in tensor.stick_dims, layout)
        place = _place(layout, steps, pitch, inner, is_wrong)
        expected = 0 if place is None else layout[place][1]
        inner = inner if place is None else place
        dims.append(TileDim(dim, steps, pitch, place, expected, is_wrong))
    return tuple(dims)


def _is_step(pitch: int, is_stick_dim: bool, layout: LayoutDims) -> bool:
    """True if the layout has a dim that steps by ``pitch`` bytes, or by a divisor of it.

    Layouts split a host dim into device dims, so a dim that is not along the stick may step by a
    multiple of one of them within its extent. Along the stick the next stick is a device dim.
    """
    if is_stick_dim:
        return any(pitch == stride for _, stride in layout)
    return any(pitch % stride == 0 and pitch < stride * max(extent, 2) for extent, stride in layout)


def _place(layout: LayoutDims, steps: int, pitch: int, inner: int, is_wrong: bool) -> int | None:
    """The layout's dim of this pitch, else the next outward from ``inner`` that whole tiles fill.

    A dim of a multiple of the pitch fits if the steps do not pass its end.
    """
    for place in range(len(layout) - 1, -1, -1):
        extent, stride = layout[place]
        multiple = pitch // stride
        exact = multiple == 1 or (steps - 1) * multiple < extent
        if not is_wrong and pitch % stride == 0 and multiple < extent and exact:
            return place
    outward = range(inner - 1, -1, -1)
    return next((k for k in outward if layout[k][0] % steps == 0), None)


def pitch_mismatch(
    op: Operation,
    tensor: Tensor,
    dims: Sequence[TileDim],
    layout: LayoutDims,
    memory: str,
    location: Location | None = None,
    also: str = "",
) -> Finding | None:
    """Warning SPY702 if some of ``dims`` have no pitch of the layout of ``memory``, else None.

    ``also``: appended to the pitches found.
    """
    wrong = [dim for dim in dims if dim.is_wrong]
    if not wrong:
        return None
    first = wrong[0]
    due = "" if first.place is None else f", expected {first.expected_bytes:,} for its layout"
    return Finding(
        "SPY702",
        Severity.WARNING,
        f"{op.name}: {tensor.name} walks {first.dim} of {memory} in steps of "
        f"{first.pitch_bytes:,} bytes{due}",
        location,
        layout_text(memory, layout),
        ", ".join(map(str, wrong)) + also,
        "a tile of a larger tensor needs a gap (backGapCore_) that gives it the larger one's "
        "pitches",
    )


def layout_text(memory: str, layout: LayoutDims) -> str:
    """The layout of ``memory`` in words, outermost dim first."""
    dims = " x ".join(f"{extent:,} of {stride:,} bytes" for extent, stride in layout if extent > 1)
    return f"{memory} is laid out as {dims or 'one stick'}"
