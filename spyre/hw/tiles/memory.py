"""Memory views, access tiles, loads and stores, while a function is traced.

A view has parts: one, or those of a distributed view. An access tile of whole sticks inside of one
part is an operand of the statement that uses it. Every other access is moved by elements: per part,
the box of coordinates that both have, grouped by its extents; elements outside of a view of unknown
sizes are 0, and not stored.
Indirect accesses are moved along their variables, where subscripts are linear in them; the first
variables are enumerated, an iteration each, as far as subscripts divide by numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.spec import LX_BYTES, STICK_BYTES
from spyre.hw.tiles.trace import Site
from spyre.hw.tiles.values import (
    ELEMENT_BYTES,
    FORMATS,
    SCRATCHPAD,
    Access,
    DataTile,
    Indirect,
    Level,
    Number,
    Part,
    View,
)
from spyre.layout import Int64Array
from spyre.mlir.program import INTEGERS, fold
from spyre.mlir.tiles import Expression

Array = npt.NDArray[Any]


# --- views --------------------------------------------------------------------------------------


def trace_view(site: Site) -> None:
    """A view of one part."""
    fields, type_ = site.op.fields, site.op.fields["!result"]
    sizes, strides = (tuple(map(site.number, fields[key])) for key in ("sizes", "strides"))
    if type_.element not in FORMATS:
        site.refuse(f"memory of {type_.element}", f"one of {', '.join(FORMATS)}")
    if not sizes:
        site.refuse("memory without dims", "sizes: [1]")
    steps = tuple(same(site, stride) for stride in strides)
    if min(steps, default=0) < 0:
        site.refuse("a stride below 0", "strides from 0 on", str(steps))
    owner, start = _place(site, site.number(fields["base"], True), type_.element)
    part = Part(owner, start, steps, (site.number(0),) * len(sizes), sizes)
    _check_room(site, type_.element, part)
    site.bind(View(type_.element, (part,), sizes, None in type_.shape, site.op))


def _place(site: Site, base: Number, element: str) -> tuple[int, Number]:
    """The owner of a view's memory, and the bytes from there to the view's first element."""
    space = site.op.memory_space
    start = base.at(site.level) * ELEMENT_BYTES[element]
    if space is not None and space.is_local:
        if space.tile is not None and space.tile >= site.n_tiles:
            message = "a view is of the scratchpad of a tile that does not exist"
            expected = f"tiles 0 to {site.n_tiles - 1}"
            site.fail(LaunchError, "SPY187", message, expected, space.tile)
        if space.tile is not None:  # as far from the running tile's scratchpad
            start = start + (space.tile - np.arange(site.n_tiles)[None]) * LX_BYTES
        return SCRATCHPAD, Number(start, site.level)
    if base.origin is not None:
        return base.origin, Number(start, site.level)
    first = int(start.flat[0])
    for number, pointer in enumerate(site.tracer.pointers.values()):
        if pointer.tile is None and pointer.address is not None:
            size = pointer.elements * ELEMENT_BYTES.get(pointer.element, 0)
            if pointer.address <= first < pointer.address + size:
                return number, Number(start - pointer.address, site.level)
    message = f"there is no memory at address {first:#x}"
    expected = f"memory of the launch, as by -i @{first:#x}=FILE"
    site.fail(LaunchError, "SPY342", message, expected, "nothing allocated")


def _check_room(site: Site, element: str, part: Part) -> None:
    """The elements of a view are in its argument (SPY343, SPY344), or in a scratchpad (SPY410)."""
    level, bytes_ = site.level, ELEMENT_BYTES[element]
    reach = sum((size.at(level) - 1) * t for size, t in zip(part.sizes, part.strides, strict=True))
    low = np.broadcast_to(part.start.at(level), level.active.shape)
    high = low + (reach + 1) * bytes_
    if part.owner == SCRATCHPAD:
        used = level.active & (high > low)
        first, end = low % LX_BYTES, low % LX_BYTES + high - low
        if (used & (end > LX_BYTES)).any():
            message, found = "a view leaves the scratchpad of a tile", end[used].max()
            site.fail(
                DeviceFault, "SPY410", message, f"bytes 0 to {LX_BYTES}", f"up to byte {found}"
            )
        if used.any():
            site.tracer.scratchpad.block(int(first[used].min()), int(end[used].max()))
        return
    argument = [*site.tracer.pointers.values()][part.owner]
    own = {"!spyreop.df16": "f16", "si32": "i32"}.get(element, element)
    if argument.element != own:
        raise LaunchError(
            "SPY344", f"argument {argument.name} has other elements than its view", site.place,
            expected=element, found=argument.element,
        )  # fmt: skip
    outside = level.active & ((low < 0) | (high > argument.elements * bytes_))
    if outside.any():
        raise LaunchError(
            "SPY343", f"argument {argument.name} is too small for its view", site.place,
            expected=f"{int(high[outside][0]) // bytes_} elements",
            found=f"{argument.elements} elements",
        )  # fmt: skip


def same(site: Site, number: Number) -> int:
    """A number that has to be one for all tiles and iterations."""
    values = number.at(site.level)
    if values.size > 1 and (values != values.flat[0]).any():
        site.refuse("a size or stride that differs between tiles")
    return int(values.flat[0])


def trace_distributed(site: Site) -> None:
    """The parts of a distributed view, each with the corner of its coordinate set."""
    type_, parts = site.op.fields["!result"], []
    for name in site.op.fields["views"]:
        view = site.one_of(View, name)
        entry = view.op.attribute("coordinate_set")
        symbols = [item for item in view.op.fields["sizes"] if isinstance(item, str)]
        points = None if entry is None else site.tracer.program.module.resolved(entry.value)
        box = None if points is None else points.box(site.numbers(symbols))
        if box is None:
            site.refuse("a part whose coordinate set is no box", found=f"%{name}")
        corner = tuple(_number(site, low) for low, _ in box)
        sizes = tuple(_number(site, high - low + 1) for low, high in box)
        parts.append(replace(view.parts[0], corner=corner, sizes=sizes))
    ends = [
        max(np.max(c.at(site.level) + n.at(site.level)) for c, n in pairs)
        for pairs in zip(*(zip(p.corner, p.sizes, strict=True) for p in parts), strict=True)
    ]
    known = zip(type_.shape, ends, strict=True)
    whole = tuple(_number(site, end if extent is None else extent) for extent, end in known)
    site.bind(View(type_.element, tuple(parts), whole, None in type_.shape, site.op))


def _number(site: Site, values: Any) -> Number:
    return Number(np.atleast_2d(np.asarray(values, np.int64)), site.level)


# --- access tiles ---------------------------------------------------------------------------------


def trace_access_tile(site: Site) -> None:
    """The box of coordinates from the values of the indices on."""
    view, base_map = site.one_of(View, site.op.fields["view"]), site.resolved("base_map")
    corner: list[Any] = [
        fold(e.expr, site.numbers(e.names), (), INTEGERS) for e in site.op.fields["indices"]
    ]
    if base_map is not None:
        corner = [fold(result, corner, (), INTEGERS) for result in base_map.results]
    lows, extents, order = box_of(site, "access_tile")
    shifted = tuple(_number(site, n + low) for n, low in zip(corner, lows, strict=True))
    if not view.is_clipped:
        for dim, (first, extent) in enumerate(zip(shifted, extents, strict=True)):
            last = first.values + extent - 1
            site.require_inside(dim, first.values, last, view.sizes[dim].at(site.level), "view")
    site.bind(Access(view, extents, order, shifted))


def box_of(site: Site, prefix: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Corner and extents of the set of an access, and the dim that each dim of the tile is."""
    box = site.resolved(f"{prefix}_set").box(site.numbers(site.op.fields.get("symbols", ())))
    if box is None:
        site.refuse("a set that is no box")
    lows, highs = (
        tuple(same(site, _number(site, x)) for x in ends) for ends in zip(*box, strict=True)
    )
    extents = tuple(high - low + 1 for low, high in zip(lows, highs, strict=True))
    order = site.resolved(f"{prefix}_order")
    return lows, extents, tuple(range(len(box))) if order is None else order.permutation


Piece = tuple[DataTile, tuple[Array, ...], Level]
"""Memory of a part of an access, where it begins in the access per dim of the tile, [row, tile],
and the iterations and tiles that have it.
"""


def _pieces(site: Site, access: Access) -> list[Piece]:
    """The access as boxes within the parts of its view. DeviceFault SPY414 for a hole."""
    level, found = site.level, []
    covered = np.zeros(level.active.shape, np.int64)

    def stacked(numbers: Sequence[Number]) -> Int64Array:
        return np.stack([np.broadcast_to(n.at(level), level.active.shape) for n in numbers])

    corner, extents = stacked(access.corner), np.array(access.extents, np.int64)[:, None, None]
    for part in access.view.parts:
        low, size = stacked(part.corner), stacked(part.sizes)
        first = np.maximum(corner, low)
        counts = np.minimum(corner + extents, low + size) - first
        inside = level.active & (counts > 0).all(axis=0)
        covered = covered + np.where(inside, counts.prod(axis=0), 0)
        for box in np.unique(counts[:, inside], axis=1).T:
            chosen = inside & (counts == box[:, None, None]).all(axis=0)
            own = level if (chosen == level.active).all() else level.restricted(chosen)
            tile = _memory(site, access, part, first - low, tuple(box.tolist()))
            found.append((tile, tuple((first - corner)[list(access.order)]), own))
    missing = level.active & (covered < np.prod(access.extents))
    if missing.any() and not access.view.is_clipped:
        number = np.argwhere(missing)[0][1]
        message = f"elements of a tile are in no part of its view, on compute tile {number}"
        expected, hole = "a part that holds them", "a hole between the parts"
        site.fail(DeviceFault, "SPY414", message, expected, hole)
    return found


def _memory(
    site: Site, access: Access, part: Part, at: Int64Array, extents: tuple[int, ...]
) -> DataTile:
    """A box of a part: whole sticks along the dim of stride 1, or single elements (no stick)."""
    element, order, strides = access.view.element, access.order, part.strides
    bytes_ = ELEMENT_BYTES[element]
    lanes = STICK_BYTES // bytes_
    steps = np.array(strides, np.int64)[:, None, None]
    starts = part.start.at(site.level) + (at * steps).sum(axis=0) * bytes_
    wide = [d for d, extent in enumerate(extents) if extent > 1]
    sticks = [d for d in wide if strides[d] == 1 and extents[d] % lanes == 0]
    others = [strides[d] for d in wide if d not in sticks]
    whole = len(sticks) == 1 and not any(s % lanes for s in others)
    whole = whole and not (np.where(site.level.active, starts, 0) % STICK_BYTES).any()
    pitches = [
        0 if extents[d] == 1 else STICK_BYTES if whole and d in sticks else strides[d] * bytes_
        for d in order
    ]
    if len(starts) > 1 and (starts == starts[:1]).all():
        starts = starts[:1]
    return DataTile(
        tuple(extents[d] for d in order), element, part.owner, starts, site.level,
        tuple(pitches), order.index(sticks[0]) if whole else None,
    )  # fmt: skip


# --- loads and stores -----------------------------------------------------------------------------


def trace_load(site: Site, access: Access) -> None:
    """A view of whole sticks if its one use is near, else a copy in the scratchpads."""
    pieces = _pieces(site, access)
    if _is_operand(access, pieces, site.level):
        tile = pieces[0][0]
        site.bind(tile if site.is_only_used_by() else site.copy(tile))
        return
    tile = site.rows(access.shape, access.view.element)
    if access.view.is_clipped:
        site.write(site.filled(0, tile.element, tile.shape), tile)
    for memory, at, own in pieces:
        site.at(own).move(memory, tile.part(at, memory.shape, own))
    site.bind(tile)


def _is_operand(access: Access, pieces: Sequence[Piece], level: Level) -> bool:
    """True for whole sticks of one part, on all tiles that take part."""
    if len(pieces) != 1:
        return False
    tile, _, own = pieces[0]
    return own is level and tile.shape == access.shape and tile.stick is not None


def _check_aliasing(site: Site, memory: DataTile) -> None:
    """LaunchError SPY192 for strides that let a store write elements twice."""
    reach = 0
    pairs = zip(memory.element_pitches, memory.shape, strict=True)
    for pitch, extent in sorted(pair for pair in pairs if pair[1] > 1):
        if pitch <= reach:
            message = "the view's strides overlap, so that elements are written twice"
            expected = f"strides above {reach} bytes"
            site.fail(LaunchError, "SPY192", message, expected, f"{pitch} bytes")
        reach += pitch * (extent - 1)


def trace_store(site: Site, access: Access) -> None:
    """The statement that computes the value writes whole sticks; all else is moved."""
    name, pieces = site.op.fields["value"], _pieces(site, access)
    for memory, _, _ in pieces:
        _check_aliasing(site, memory)
    if _is_operand(access, pieces, site.level):
        target, found = pieces[0][0], site.tracer.scope[name]
        made = found(target) if callable(found) else None
        if made is not target:
            site.write(made or site.tile(name, target.shape), target)
        return
    value = site.tile(name, access.shape)
    for memory, at, own in pieces:
        site.at(own).move(value.part(at, memory.shape, own), memory)


# --- indirect accesses ----------------------------------------------------------------------------


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
