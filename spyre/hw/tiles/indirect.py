"""Indirect accesses: moved along their variables, where subscripts are linear in them.

The first variables are enumerated, an iteration each, as far as subscripts divide by numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spyre.hw.tiles.memory import Array, box_of, same
from spyre.hw.tiles.trace import Site
from spyre.hw.tiles.values import ELEMENT_BYTES, DataTile, Indirect, Number, View
from spyre.mlir.program import INTEGERS, fold
from spyre.mlir.tiles import Expression

Line = tuple[Number, tuple[int, ...]]
"""A linear function of the variables: its first value, and its step along each."""


def trace_indirect_tile(site: Site) -> None:
    """An access of whose elements the places are found where it is loaded or stored."""
    lows, extents, order = box_of(site, "variables_space")
    view = site.one_of(View, site.op.fields["view"])
    site.bind(Indirect(view, extents, order, lows=lows, op=site.op))


def trace_moved(site: Site, access: Indirect, loads: bool) -> None:
    """A copy of, or to, the elements that the subscripts name."""
    element = access.view.element
    if loads:
        value = site.rows(access.shape, element)
        site.bind(value)
    else:
        value = site.tile(site.op.fields["value"], access.shape)
    lookups = [site.value(s.view) if s.view else None for s in access.op.fields["subscripts"]]
    if any(len(v.parts) > 1 for v in (access.view, *lookups) if isinstance(v, View)):
        site.refuse("an indirect access of a distributed view", "a view of one part")
    inner, lines, extents, steps = _resolved(site, access)
    nothing, indices, direct = (site.number(0), (0,) * len(extents)), [], []
    for dim, (view, own) in enumerate(zip(lookups, lines, strict=True)):
        for d, (first, slopes) in enumerate(own):
            low = first.at(inner.level)
            last = low + sum(s * (n - 1) for s, n in zip(slopes, extents, strict=True))
            looked, k = (view, d) if isinstance(view, View) else (access.view, dim)
            inner.require_inside(k, low, last, looked.sizes[k].at(inner.level), "view")
        direct.append(nothing if view is not None else own[0])
        if isinstance(view, View):
            step = access.view.parts[0].strides[dim] * ELEMENT_BYTES[access.view.element]
            count = same(inner, access.view.sizes[dim])
            indices.append((_walked(inner, view, own, extents), step, count))
    memory, order = _walked(inner, access.view, direct, extents), access.order
    at = [steps[v].values if v < len(steps) else np.zeros((1, 1), np.int64) for v in order]
    part = value.part(at, tuple(extents[v] for v in order), inner.level)
    part = part.permuted(tuple(map(order.index, range(len(order)))))
    inner.move(*((memory, part) if loads else (part, memory)), indices, gathers=loads)


def _resolved(
    site: Site, access: Indirect
) -> tuple[Site, list[list[Line]], tuple[int, ...], list[Number]]:
    """The iterations, the subscripts as linear functions, the extents of the variables, and the
    steps of those that are enumerated.
    """
    subscripts, rank = access.op.fields["subscripts"], len(access.extents)
    lows = dict(zip(access.op.fields["^variables"], access.lows, strict=True))
    expressions = [e for subscript in subscripts for e in subscript.expressions]
    for count in range(rank + 1):
        inner, steps = _enumerated(site, access.extents[:count])
        extents = (1,) * count + access.extents[count:]
        found = [_line(inner, e, lows, extents, steps) for e in expressions]
        if None not in found:
            break
    lines = iter([line for line in found if line is not None])
    own = [[next(lines) for _ in subscript.expressions] for subscript in subscripts]
    return inner, own, extents, steps


def _enumerated(site: Site, extents: tuple[int, ...]) -> tuple[Site, list[Number]]:
    """An iteration per point of the first variables, and their steps from the lowest value."""
    if not extents:
        return site, []
    rows, points = site.level.rows, np.indices(extents).reshape(len(extents), -1)
    inner, _ = site.tracer.repeated(site.level, np.full(rows, points.shape[1]))
    return site.at(inner), [Number(np.tile(row, rows)[:, None], inner) for row in points]


def _line(
    site: Site,
    expression: Expression,
    lows: Mapping[str, int],
    extents: tuple[int, ...],
    steps: Sequence[Number],
) -> Line | None:
    """An expression as a linear function of the variables; None if it is none, or falls."""
    divides = any(word in str(expression) for word in ("floordiv", "ceildiv", "mod"))
    looked = extents if divides else tuple(min(extent, 2) for extent in extents)
    grid, variables, wide = np.indices(looked), [*lows], (..., *(None,) * len(extents))

    def value(name: str) -> Array:
        if name not in lows:
            numbers: Array = site.number(name).at(site.level)[wide]
            return numbers
        k = variables.index(name)
        return np.asarray((steps[k].values[wide] if k < len(steps) else grid[k]) + lows[name])

    found = np.asarray(fold(expression.expr, [*map(value, expression.names)], (), INTEGERS))
    found = np.broadcast_to(found, np.broadcast_shapes(found.shape, (1, 1, *looked)))
    slopes = []
    for k, extent in enumerate(looked):
        step = np.diff(found, axis=2 + k) if extent > 1 else np.zeros(1, np.int64)
        if (step != step.flat[0]).any() or step.flat[0] < 0:
            return None
        slopes.append(int(step.flat[0]))
    first = found.reshape(*found.shape[:2], -1)[:, :, 0]
    return Number(first, site.level), tuple(slopes)


def _walked(site: Site, view: View, lines: Sequence[Line], extents: tuple[int, ...]) -> DataTile:
    """The elements of ``view`` at coordinates that are linear in the variables."""
    part, bytes_, level = view.parts[0], ELEMENT_BYTES[view.element], site.level
    pairs = list(zip(part.strides, lines, strict=True))
    starts = part.start.at(level) + bytes_ * sum(s * first.at(level) for s, (first, _) in pairs)
    pitches = tuple(
        bytes_ * sum(s * slopes[k] for s, (_, slopes) in pairs) for k in range(len(extents))
    )
    return DataTile(extents, view.element, part.owner, np.atleast_2d(starts), level, pitches, None)
