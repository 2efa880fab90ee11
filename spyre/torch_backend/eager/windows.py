"""Windows that slide over a padded tensor, as views: what convolutions and pooling are made of.

Sticks run along the channels, so that every place of the window, for all positions at once, is a
view of the padded tensor with pitches of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from spyre.torch_backend.program import (
    DeviceOp,
    Ints,
    Lowering,
    LoweringError,
    OpKind,
    Value,
    narrowed,
)


@dataclass(frozen=True)
class Windows:
    """Windows over the spatial dims of [batch, channels, *spatial]; per spatial dim, in elements.

    ``extents``: of the input. ``positions``: windows, ``stride`` apart. ``size``: places of a
    window, ``dilation`` apart. ``before``: padding in front. ``spread``: distance of the input's
    elements in the padded tensor, which has padding between them too.
    """

    extents: Ints
    positions: Ints
    size: Ints
    stride: Ints
    before: Ints
    dilation: Ints
    spread: Ints

    @classmethod
    def of(
        cls,
        extents: Sequence[int],
        positions: Sequence[int],
        size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> Windows:
        """Windows over a tensor without padding between its elements."""
        lists = (extents, positions, size, stride, padding, dilation, [1] * len(extents))
        return cls(*(tuple(map(int, numbers)) for numbers in lists))

    def reversed(self) -> Windows:
        """Windows over the positions of these, at all elements of their input: those that a
        gradient is gathered by, with the places in reverse order.

        LoweringError where windows reach nothing but padding.
        """
        columns = zip(self.dilation, self.size, self.before, strict=True)
        before = tuple(d * (k - 1) - b for d, k, b in columns)
        if min(before) < 0:
            raise LoweringError("windows with more padding than they reach")
        ones = (1,) * len(self.size)
        return Windows(
            self.positions, self.extents, self.size, ones, before, self.dilation, self.stride
        )

    @cached_property
    def padded(self) -> Ints:
        """Extents of the padded input: all that windows reach and the input covers, in whole steps,
        so that one dim's pitch divides the next one's.
        """
        reach = [
            (p - 1) * s + d * (k - 1) + 1
            for p, s, d, k in zip(
                self.positions, self.stride, self.dilation, self.size, strict=True
            )
        ]
        covered = [
            b + (n - 1) * s + 1
            for b, n, s in zip(self.before, self.extents, self.spread, strict=True)
        ]
        steps = map(lcm, self.stride, self.spread)
        return tuple(
            -(-max(ends) // step) * step for *ends, step in zip(reach, covered, steps, strict=True)
        )

    @property
    def is_plain(self) -> bool:
        """True if the padded input is the input."""
        return self.padded == self.extents

    @property
    def is_one_place(self) -> bool:
        """True if the input itself is what all windows see."""
        return self.is_plain and self.positions == self.extents

    def places(self) -> Iterator[Ints]:
        """Places of the window, in the order of a weight's elements."""
        return itertools.product(*map(range, self.size))

    def opposite(self, place: Ints) -> Ints:
        """The place in the reverse order."""
        return tuple(n - 1 - step for n, step in zip(self.size, place, strict=True))

    def seen(self, padded: Value, place: Ints) -> Value:
        """[batch, channels, *positions] of the padded input: what all windows have at a place."""
        columns = zip(place, self.dilation, self.stride, self.positions, strict=True)
        for k, (step, dilation, stride, count) in enumerate(columns):
            padded = narrowed(padded, 2 + k, step * dilation, count, stride)
        return padded

    def inner(self, padded: Value) -> Value:
        """The input within the padded tensor."""
        columns = zip(self.before, self.extents, self.spread, strict=True)
        for k, (before, extent, spread) in enumerate(columns):
            padded = narrowed(padded, 2 + k, before, extent, spread)
        return padded


def by_channels(builder: Lowering, x: Value) -> Value:
    """``x`` with memory for every element, and sticks along its channels."""
    return builder.with_lane(builder.materialized(x), 1 if x.sizes[1] > 1 else -1)


def filled(builder: Lowering, sizes: Sequence[int], dtype: str, lane: int, number: float) -> Value:
    """Fresh memory with one number everywhere."""
    into = builder.scratch(sizes, dtype, lane)
    return copied_to(builder, builder.constant(number, dtype), into)


def copied_to(builder: Lowering, source: Value, target: Value) -> Value:
    """Have the elements of ``source`` written to a view; returns the view."""
    return builder.add(DeviceOp(OpKind.POINTWISE, "identity", (source,), target))


def restickified(builder: Lowering, source: Value, target: Value) -> Value:
    """As `copied_to`, from sticks along one dim to sticks along another."""
    if source.lane_dim == target.lane_dim:
        return copied_to(builder, source, target)
    return builder.add(DeviceOp(OpKind.RESTICKIFY, "ReStickifyOpHBM", (source,), target))


def padded_input(builder: Lowering, x: Value, windows: Windows, number: float = 0.0) -> Value:
    """The padded tensor, with sticks along the channels and zeros in the lanes behind them."""
    x = by_channels(builder, x)
    channels, lanes = x.sizes[1], x.view.elements_per_stick
    is_whole = x.lane_dim < 0 or channels % lanes == 0
    if windows.is_plain and is_whole:
        return x
    sizes = (*x.sizes[:2], *windows.padded)
    if windows.is_plain:
        into = inner = builder.scratch(sizes, x.dtype, x.lane_dim)
    else:
        into = filled(builder, sizes, x.dtype, x.lane_dim, number)
        inner = windows.inner(into)
    if is_whole:
        copied_to(builder, x, inner)
    else:
        one = builder.constant(1.0, x.dtype)
        builder.add(DeviceOp(OpKind.POINTWISE, "mul", (x, one), inner, mask_from=channels))
    return into
