"""Pieces of a dim of a device tensor that one pitch describes: taken apart and put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Factor:
    """A piece of a dim that one pitch describes.

    ``extent``: elements. ``pitch_bytes``: from one element to the next; 0 where all steps read the
    same element; with ``lane`` elements lie side by side in sticks, and it is from stick to stick.
    """

    extent: int
    pitch_bytes: int
    lane: bool = False


def take(factors: list[Factor], size: int, lanes: int) -> tuple[Factor, ...] | None:
    """The innermost ``size`` elements, taken off the end of ``factors``."""
    found: list[Factor] = []
    while size > 1:
        last = factors.pop()
        if size % last.extent == 0:
            found.append(last)
            size //= last.extent
            continue
        parts = split(last, size, lanes)
        if parts is None:
            return None
        factors.append(parts[0])
        found.append(parts[1])
        size = 1
    return tuple(reversed(found))


def split(factor: Factor, inner: int, lanes: int) -> tuple[Factor, Factor] | None:
    """Two factors, of which the inner one has ``inner`` elements; None if pitches cannot."""
    if factor.extent % inner:
        return None
    outer = factor.extent // inner
    if not factor.lane:
        return Factor(outer, factor.pitch_bytes * inner), replace(factor, extent=inner)
    if inner % lanes:
        return None
    pitch = factor.pitch_bytes * (inner // lanes)
    return Factor(outer, pitch), replace(factor, extent=inner)


def joined(dim: Sequence[Factor], lanes: int) -> tuple[Factor, ...]:
    """The factors of a dim with neighbours that one pitch describes as one.

    So whole sticks at even distances are one factor along the lanes, wherever they came from.
    """
    found: list[Factor] = []
    for factor in dim:
        outer = found[-1] if found else None
        if outer is not None and not outer.lane and _goes_on(outer, factor, lanes):
            one_stick = factor.lane and factor.extent == lanes
            pitch = outer.pitch_bytes if one_stick else factor.pitch_bytes
            found[-1] = replace(factor, extent=outer.extent * factor.extent, pitch_bytes=pitch)
        else:
            found.append(factor)
    return tuple(found)


def _goes_on(outer: Factor, inner: Factor, lanes: int) -> bool:
    """True if ``outer`` steps from where ``inner`` ends."""
    if not inner.lane:
        return outer.pitch_bytes == inner.extent * inner.pitch_bytes
    if inner.extent % lanes or not outer.pitch_bytes:
        return False
    sticks = inner.extent // lanes
    return sticks == 1 or outer.pitch_bytes == sticks * inner.pitch_bytes
