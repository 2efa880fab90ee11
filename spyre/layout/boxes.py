"""Rectangles of device coordinates that hold host elements, and those that are padding.

The elements of one host dim lie on one or several device axes like the digits of a number; where
the host dim ends inside a digit (a partial stick), what it covers is no rectangle but a few of
them. Pure integers; used by :mod:`.conversion`. Rule: runtime reference §3.
"""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]
"""First index and number of steps along one axis."""
Box = tuple[Span, ...]
"""One span per axis."""


def split_boxes(size: int, axes: Sequence[tuple[int, int]]) -> tuple[list[Box], list[Box]]:
    """Boxes with Σ multiplier·index < ``size``, and boxes of all other indices; all disjoint.

    ``axes``: (multiplier, extent) by falling multiplier; each multiplier is the number of elements
    that the axes after it hold, as `check_tiling` of the geometry demands. The box of whole steps
    comes first, that of the rest after it.
    """
    if not axes:
        return ([()], []) if size > 0 else ([], [()])
    (multiplier, extent), rest = axes[0], axes[1:]
    all_of_rest = tuple((0, n) for _, n in rest)
    whole = min(extent, whole_steps(size, multiplier, rest))
    begun = min(extent, -(-size // multiplier))
    held: list[Box] = [((0, whole), *all_of_rest)] if whole else []
    padding: list[Box] = []
    if begun > whole:
        inner_held, inner_padding = split_boxes(size - whole * multiplier, rest)
        held += [((whole, 1), *box) for box in inner_held]
        padding += [((whole, 1), *box) for box in inner_padding]
    if begun < extent:
        padding.append(((begun, extent - begun), *all_of_rest))
    return held, padding


def whole_steps(size: int, multiplier: int, rest: Sequence[tuple[int, int]]) -> int:
    """Steps of an axis in which all elements of the axes in ``rest`` lie below ``size``."""
    reach = 1 + sum(m * (n - 1) for m, n in rest)
    return (size - reach) // multiplier + 1 if size >= reach else 0
