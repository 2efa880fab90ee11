"""Positions of elements: nests of axes that walk several spaces in parallel.

A *space* is a kind of position: bytes of an operand's memory, elements of a host storage,
coordinates along a dim. An axis is a loop that moves by a constant pitch in each space; a map is a
nest of axes, the outermost first. A map with one space gives the addresses of a tensor's pieces; a
map of bytes and coordinates also gives their elements; a map of two memories relates their
addresses. Planners, checks, copies and tiled launches all use this form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod

import msgspec
import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


class Axis(msgspec.Struct, frozen=True):
    """A loop: ``extent`` steps, each moving by ``pitches[k]`` in space k."""

    extent: int
    pitches: tuple[int, ...]

    def split(self, inner: int) -> tuple[Axis, Axis]:
        """Split into an outer and an inner axis of ``inner`` steps, a divisor of the extent."""
        outer = tuple(inner * pitch for pitch in self.pitches)
        return Axis(self.extent // inner, outer), Axis(inner, self.pitches)

    def continues(self, inner: Axis) -> bool:
        """Return True if a step of this axis is as long as all of ``inner``, in every space."""
        pairs = zip(self.pitches, inner.pitches, strict=True)
        return all(mine == its * inner.extent for mine, its in pairs)


def drop_unit_axes(axes: Sequence[Axis]) -> list[Axis]:
    """Axes of more than one step."""
    return [axis for axis in axes if axis.extent > 1]


def join_axes(axes: Sequence[Axis]) -> list[Axis]:
    """Join neighbouring axes (outer first) where the outer one continues the inner one."""
    joined: list[Axis] = []
    for axis in axes:
        if joined and joined[-1].continues(axis):
            joined[-1] = Axis(joined[-1].extent * axis.extent, axis.pitches)
        else:
            joined.append(axis)
    return joined


def sort_axes(axes: Sequence[Axis], space: int) -> list[Axis]:
    """Sort axes by falling pitch in ``space`` (usually the output's), then in the other spaces."""
    return sorted(axes, key=lambda a: (-abs(a.pitches[space]), tuple(-abs(p) for p in a.pitches)))


def canonical_axes(axes: Sequence[Axis], space: int) -> list[Axis]:
    """Drop unit axes, sort by the pitch in ``space`` and join neighbours."""
    return join_axes(sort_axes(drop_unit_axes(axes), space))


def pad_axes(axes: Sequence[Axis], rank: int, spaces: int) -> list[Axis]:
    """Add unit axes in front until there are ``rank`` axes."""
    missing = rank - len(axes)
    return [Axis(1, (0,) * spaces)] * missing + list(axes)


class AccessMap(msgspec.Struct, frozen=True, dict=True):
    """Positions of all steps of a nest: ``first`` in each space, plus the pitches of the steps.

    `steps_of`, `locate` and `contains` require nested pitches: each is larger than the distance
    that all axes inside of it cover.
    """

    first: tuple[int, ...]
    axes: tuple[Axis, ...]

    @property
    def count(self) -> int:
        """Number of steps."""
        return prod(axis.extent for axis in self.axes)

    @cached_property
    def _extents(self) -> tuple[tuple[int, int], ...]:
        """Lowest and highest position in each space."""
        result = []
        for space, start in enumerate(self.first):
            ways = [(axis.extent - 1) * axis.pitches[space] for axis in self.axes]
            low = start + sum(way for way in ways if way < 0)
            result.append((low, start + sum(way for way in ways if way > 0)))
        return tuple(result)

    def lowest(self, space: int = 0) -> int:
        """The lowest position."""
        return self._extents[space][0]

    def highest(self, space: int = 0) -> int:
        """The highest position."""
        return self._extents[space][1]

    def at(self, steps: Sequence[int]) -> tuple[int, ...]:
        """Return the position in every space after the given steps along each axis."""
        moves = [(n, axis.pitches) for n, axis in zip(steps, self.axes, strict=True)]
        return tuple(
            start + sum(n * pitches[space] for n, pitches in moves)
            for space, start in enumerate(self.first)
        )

    def offsets(self, space: int = 0) -> Int64Array:
        """Return the positions of all steps in the order of the nest."""
        total = np.full(1, self.first[space], np.int64)
        for axis in self.axes:
            steps = np.arange(axis.extent, dtype=np.int64) * axis.pitches[space]
            total = (total[:, None] + steps).ravel()
        return total

    def steps_of(
        self, offsets: Int64Array, space: int = 0, *, beyond: bool = False
    ) -> tuple[Int64Array, Int64Array]:
        """Return the steps, [..., axis], of the last piece at or before each offset, and the rest.

        ``beyond``: the outermost axis continues past its extent, in both directions.
        """
        rest = offsets - self.first[space]
        steps = np.zeros((*rest.shape, len(self.axes)), np.int64)
        for k, axis in enumerate(self.axes):
            if axis.pitches[space]:
                steps[..., k] = rest // axis.pitches[space]
            if k or not beyond:
                np.clip(steps[..., k], 0, axis.extent - 1, out=steps[..., k])
            rest = rest - steps[..., k] * axis.pitches[space]
        return steps, rest

    def locate(
        self, offsets: Int64Array, source: int, target: int, *, beyond: bool = False
    ) -> Int64Array:
        """Convert ``offsets`` of space ``source`` to positions in space ``target``.

        The rest below the innermost pitch is added unchanged. ``beyond``: as of `steps_of`.
        """
        steps, rest = self.steps_of(offsets, source, beyond=beyond)
        pitches = np.array([axis.pitches[target] for axis in self.axes], np.int64)
        located: Int64Array = steps @ pitches + (rest + self.first[target])
        return located

    def contains(self, offsets: Int64Array, size: int = 1, space: int = 0) -> npt.NDArray[np.bool_]:
        """Return for each offset whether it is inside a piece of ``size``."""
        _, rest = self.steps_of(offsets, space)
        inside: npt.NDArray[np.bool_] = (rest >= 0) & (rest < size)
        return inside

    def part(self, spans: Sequence[tuple[int, int]]) -> AccessMap:
        """Return the part of the nest with one span (first step, number of steps) per axis."""
        starts = [first for first, _ in spans]
        axes = [
            axis if steps == axis.extent else Axis(steps, axis.pitches)
            for axis, (_, steps) in zip(self.axes, spans, strict=True)
        ]
        return AccessMap(self.at(starts) if any(starts) else self.first, tuple(axes))

    def shifted(self, distances: Sequence[int]) -> AccessMap:
        """Return the map moved by ``distances``, one per space."""
        first = (start + way for start, way in zip(self.first, distances, strict=True))
        return AccessMap(tuple(first), self.axes)

    def picked(self, spaces: Sequence[int]) -> AccessMap:
        """Return the map of the given spaces, in this order."""
        axes = (Axis(a.extent, tuple(a.pitches[k] for k in spaces)) for a in self.axes)
        return AccessMap(tuple(self.first[k] for k in spaces), tuple(axes))

    def canonical(self, space: int) -> AccessMap:
        """`joined`, after the axes are sorted by the pitch in ``space``: the order may change."""
        return self._with(canonical_axes(self.axes, space))

    def _with(self, axes: Sequence[Axis]) -> AccessMap:
        return AccessMap(self.first, tuple(axes) or (Axis(1, (0,) * len(self.first)),))

    def joined(self) -> AccessMap:
        """Return the same walk without unit axes and with neighbouring axes joined.

        At least one axis is left, of one step if there are no others.
        """
        return self._with(join_axes(drop_unit_axes(self.axes)))

    def expanded(self, index: int, inner: int) -> AccessMap:
        """Return the same walk with the axis at ``index`` split in two, see `Axis.split`."""
        axes = self.axes
        return AccessMap(self.first, (*axes[:index], *axes[index].split(inner), *axes[index + 1 :]))

    def moved(self, step: int) -> AccessMap:
        """Return the rest of the nest at ``step`` of the outermost axis."""
        outer, *inner = self.axes
        pairs = zip(self.first, outer.pitches, strict=True)
        return AccessMap(tuple(start + step * pitch for start, pitch in pairs), tuple(inner))

    def unrolled(self, rank: int) -> Iterator[AccessMap]:
        """Yield the walk in parts of at most ``rank`` axes, unrolling the outermost ones."""
        if len(self.axes) <= rank:
            yield self
            return
        for step in range(self.axes[0].extent):
            yield from self.moved(step).unrolled(rank)
