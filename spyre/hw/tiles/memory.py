"""Memory views, access tiles, loads and stores, while a function is traced.

A view has parts: one, or those of a distributed view. An access tile of whole sticks inside of one
part is an operand of the statement that uses it. Every other access is moved by elements: per part,
the box of coordinates that both have, grouped by its extents; elements outside of a view of unknown
sizes are 0, and not stored.
Indirect accesses are moved along their variables, where subscripts are linear in them; the first
variables are enumerated, an iteration each, as far as subscripts divide by numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.spec import LX_BYTES
from spyre.hw.tiles.elementwise import converted
from spyre.hw.tiles.trace import STORED, Array, Site
from spyre.hw.tiles.values import (
    ELEMENT_BYTES,
    FORMATS,
    SCRATCHPAD,
    Access,
    DataTile,
    Level,
    Number,
    Part,
    Shape,
    View,
)
from spyre.layout import Int64Array
from spyre.mlir.program import INTEGERS, fold
from spyre.mlir.tiles import OVERLAP, Expression, overlap

MASK = STORED["i1"]


def trace_view(site: Site) -> None:
    """A view of one part."""
    fields, type_ = site.op.fields, site.op.fields["!result"]
    sizes, strides = (tuple(map(site.number, fields[key])) for key in ("sizes", "strides"))
    element = MASK if type_.element == "i1" else type_.element
    if element not in FORMATS:
        site.refuse(f"memory of {type_.element}", f"one of {', '.join(FORMATS)}")
    if not sizes:
        site.refuse("memory without dims", "sizes: [1]")
    steps = tuple(same(site, stride) for stride in strides)
    if min(steps, default=0) < 0:
        site.refuse("a stride below 0", "strides from 0 on", str(steps))
    owner, start = _place(site, site.number(fields["base"], True), element)
    pitches = tuple(step * ELEMENT_BYTES[element] for step in steps)
    tile = DataTile((0,) * len(sizes), element, owner, start, site.level, pitches, None)
    _check_room(site, tile, sizes)
    part = Part(tile, (site.number(0),) * len(sizes), sizes)
    site.bind(View((part,), sizes, None in type_.shape, site.op))


def _place(site: Site, base: Number, element: str) -> tuple[int, Int64Array]:
    """The owner of a view's memory, and the bytes from there to the view's first element."""
    space, start = site.op.memory_space, base.at(site.level) * ELEMENT_BYTES[element]
    if space is not None and space.is_local:
        if space.tile is None:
            return SCRATCHPAD, start
        if space.tile >= site.n_tiles:
            message = "a view is of the scratchpad of a tile that does not exist"
            expected = f"tiles 0 to {site.n_tiles - 1}"
            site.fail(LaunchError, "SPY187", message, expected, space.tile)
        # as far from the running tile's scratchpad
        return SCRATCHPAD, start + (space.tile - np.arange(site.n_tiles)[None]) * LX_BYTES
    if base.origin is not None:
        return base.origin, start
    first = int(start.flat[0])
    for number, pointer in enumerate(site.tracer.pointers.values()):
        address = None if pointer.tile is not None else pointer.address
        if address is not None and address <= first < address + pointer.size_bytes:
            return number, start - address
    message = f"there is no memory at address {first:#x}"
    expected = f"memory of the launch, as by -i @{first:#x}=FILE"
    site.fail(LaunchError, "SPY342", message, expected, "nothing allocated")


def _check_room(site: Site, tile: DataTile, sizes: Sequence[Number]) -> None:
    """The elements of a view are in its argument (SPY343, SPY344), or in a scratchpad (SPY410)."""
    level, bytes_ = site.level, ELEMENT_BYTES[tile.element]
    low = np.broadcast_to(tile.offsets, level.active.shape)
    reach = sum((n.at(level) - 1) * pitch for n, pitch in zip(sizes, tile.pitches, strict=True))
    high = low + reach + bytes_
    if tile.is_local:
        used = level.active & (high > low)
        first, end = low % LX_BYTES, low % LX_BYTES + high - low
        if (used & (end > LX_BYTES)).any():
            message, found = "a view leaves the scratchpad of a tile", end[used].max()
            expected = f"bytes 0 to {LX_BYTES}"
            site.fail(DeviceFault, "SPY410", message, expected, f"up to byte {found}")
        if used.any():
            site.tracer.scratchpad.block(int(first[used].min()), int(end[used].max()))
        return
    argument = [*site.tracer.pointers.values()][tile.owner]
    written = site.op.fields["!result"].element
    own = {"!spyreop.df16": "f16", "si32": "i32", "index": "i64"}.get(written, written)
    for place in argument.places or (argument,):
        begin = (place.address or 0) - (argument.address or 0)
        holds = (begin <= low) & (high <= begin + place.size_bytes) | (place is argument)
        if place.element != own and holds[level.active].all():
            message = f"argument {place.name} has other elements than its view"
            site.fail(LaunchError, "SPY344", message, written, place.element)
    outside = level.active & ((low < 0) | (high > argument.size_bytes))
    if outside.any():
        message = f"argument {argument.name} is too small for its view"
        expected = f"{int(high[outside][0]) // bytes_} elements"
        site.fail(LaunchError, "SPY343", message, expected, f"{argument.elements} elements")


def same(site: Site, number: Number) -> int:
    """A number that has to be one for all tiles and iterations."""
    values = number.at(site.level)
    if values.size > 1 and (values != values.flat[0]).any():
        site.refuse("a size or stride that differs between tiles")
    return int(values.flat[0])


def trace_distributed(site: Site) -> None:
    """The parts of a distributed view, each with the corner of its coordinate set."""
    type_, parts, ends = site.op.fields["!result"], [], []
    for name in site.op.fields["views"]:
        view = site.one_of(View, name)
        symbols = [item for item in view.op.fields["sizes"] if isinstance(item, str)]
        points = site.tracer.program.module.attribute(view.op, "coordinate_set")
        box = None if points is None else points.box(site.numbers(symbols))
        if box is None:
            site.refuse("a part whose coordinate set is no box", found=f"%{name}")
        corner = tuple(_number(site, low) for low, _ in box)
        sizes = tuple(_number(site, high - low + 1) for low, high in box)
        parts.append(replace(view.parts[0], corner=corner, sizes=sizes))
        ends.append([np.max(high) + 1 for _, high in box])
    extents = zip(type_.shape, map(max, zip(*ends, strict=True)), strict=True)
    whole = tuple(_number(site, end if extent is None else extent) for extent, end in extents)
    site.bind(View(tuple(parts), whole, None in type_.shape, site.op))


def _number(site: Site, values: Any) -> Number:
    return Number(np.atleast_2d(np.asarray(values, np.int64)), site.level)


def trace_access_tile(site: Site) -> None:
    """The box of coordinates from the values of the indices on."""
    view, base_map = site.one_of(View, site.op.fields["view"]), site.resolved("base_map")
    corner: list[Any] = [
        fold(e.expr, site.numbers(e.names), (), INTEGERS) for e in site.op.fields["indices"]
    ]
    if base_map is not None:
        corner = [fold(result, corner, (), INTEGERS) for result in base_map.results]
    lows, extents, order = _box(site, "access_tile")
    shifted = tuple(_number(site, n + low) for n, low in zip(corner, lows, strict=True))
    if not view.is_clipped:
        for dim, (first, extent) in enumerate(zip(shifted, extents, strict=True)):
            last = first.values + extent - 1
            site.require_inside(dim, first.values, last, view.sizes[dim].at(site.level), "view")
    site.bind(Access(view, extents, order, shifted))


def trace_indirect_tile(site: Site) -> None:
    """An access of whose elements the places are found where it is loaded or stored."""
    lows, extents, order = _box(site, "variables_space")
    corner = tuple(_number(site, low) for low in lows)
    site.bind(Access(site.one_of(View, site.op.fields["view"]), extents, order, corner, site.op))


def _box(site: Site, prefix: str) -> tuple[Shape, ...]:
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
    level, order, found = site.level, access.order, []
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
        _, begins = np.unique(counts[:, inside], axis=1, return_index=True)
        for box in counts[:, inside][:, np.sort(begins)].T:  # of overlapping stores the last counts
            chosen = inside & (counts == box[:, None, None]).all(axis=0)
            own = level if (chosen == level.active).all() else level.restricted(chosen)
            tile = part.tile.part([*(first - low)], tuple(box.tolist()), level).permuted(order)
            at = tuple((first - corner)[list(order)])
            found.append((tile.in_sticks(level.active), at, own))
    missing = level.active & (covered < np.prod(access.extents))
    if missing.any() and not access.view.is_clipped:
        number = np.argwhere(missing)[0][1]
        message = f"elements of a tile are in no part of its view, on compute tile {number}"
        expected, hole = "a part that holds them", "a hole between the parts"
        site.fail(DeviceFault, "SPY414", message, expected, hole)
    return found


def trace_moved(site: Site) -> None:
    """ktdp.load: a view of whole sticks if its one use is near, else a copy in the scratchpads.

    ktdp.store: the statement that computes the value writes whole sticks; all else is moved.
    """
    access, loads = site.one_of(Access, site.op.fields["tile"]), bool(site.op.results)
    if access.op is not None:
        _move_indirect(site, access, loads)
        return
    pieces = _pieces(site, access)
    for memory, _, _ in pieces if not loads else ():
        if found := overlap(memory.pitches, memory.shape):
            expected = f"strides above {found[0]} bytes"
            site.fail(LaunchError, "SPY192", OVERLAP, expected, f"{found[1]} bytes")
    whole = [m for m, _, own in pieces if own is site.level and m.shape == access.shape]
    if len(pieces) == len(whole) == 1 and whole[0].stick is not None:
        _bind_operand(site, access, whole[0])
        return
    value = _value(site, access)
    if loads and access.view.is_clipped:
        site.zeroed(value)
    for memory, at, own in pieces:
        place = value.part(at, memory.shape, own)
        site.at(own).move(*((memory, place) if loads else (place, memory)))


def _value(site: Site, access: Access) -> DataTile:
    """Return the tile that a store writes, or a new tile, bound to the result of a load."""
    if not site.op.results:
        tile = site.tile(site.op.fields["value"], access.shape)
        is_mask = site.op.fields["!value"].element == "i1"
        return converted(site, tile, MASK) if is_mask else tile
    value = site.rows(access.shape, access.view.element)
    site.bind(value)
    return value


def _bind_operand(site: Site, access: Access, memory: DataTile) -> None:
    """Whole sticks, as an operand of the statement that uses them or computes them."""
    if site.op.results:
        site.bind(memory if site.is_only_used_by() else site.copy(memory))
        return
    name, scope = site.op.fields["value"], site.tracer.scope
    if callable(found := scope[name]) and site.op.fields["!value"].element != "i1":
        scope[name] = found(memory)
    if scope[name] is not memory:
        site.write(_value(site, access), memory)


Line = tuple[Array, Shape]
"""A linear function of the variables: its first value [row, tile], and its step along each."""


def _move_indirect(site: Site, access: Access, loads: bool) -> None:
    """A copy of, or to, the elements that the subscripts name."""
    assert access.op is not None
    order, whole, subscripts = access.order, access.view, access.op.fields["subscripts"]
    value = _value(site, access)
    lookups = [site.value(s.view) if s.view else None for s in subscripts]
    if any(len(v.parts) > 1 for v in (whole, *lookups) if isinstance(v, View)):
        site.refuse("an indirect access of a distributed view", "a view of one part")
    inner, lines, extents, steps = _lines_of(site, access)
    indices, direct, nothing = [], [], (np.zeros((1, 1), np.int64), (0,) * len(extents))
    for dim, (view, own) in enumerate(zip(lookups, lines, strict=True)):
        for d, (low, slopes) in enumerate(own):
            last = low + sum(s * (n - 1) for s, n in zip(slopes, extents, strict=True))
            looked, k = (view, d) if isinstance(view, View) else (whole, dim)
            inner.require_inside(k, low, last, looked.sizes[k].at(inner.level), "view")
        direct.append(own[0] if view is None else nothing)
        if isinstance(view, View):
            table = _along(view, own, extents, inner)
            step, count = whole.parts[0].tile.pitches[dim], same(inner, whole.sizes[dim])
            indices.append((table, step, count))
    memory = _along(whole, direct, extents, inner)
    at = [steps[v] if v < len(steps) else nothing[0] for v in order]
    part = value.part(at, tuple(extents[v] for v in order), inner.level)
    part = part.permuted(tuple(map(order.index, range(len(order)))))
    inner.move(*((memory, part) if loads else (part, memory)), indices, gathers=loads)


def _along(view: View, lines: Sequence[Line], extents: Shape, site: Site) -> DataTile:
    """The elements of ``view`` at coordinates that are linear in the variables."""
    first, slopes = [low for low, _ in lines], [slope for _, slope in lines]
    return view.parts[0].tile.viewed(extents, first, slopes, site.level)


def _lines_of(site: Site, access: Access) -> tuple[Site, list[list[Line]], Shape, list[Array]]:
    """The iterations, the subscripts as linear functions, the extents of the variables, and the
    steps of those that are enumerated from their lowest values.
    """
    assert access.op is not None
    subscripts, rows = access.op.fields["subscripts"], site.level.rows
    variables, inner = access.op.fields["^variables"], site
    for count in range(len(access.extents) + 1):
        extents, steps = (1,) * count + access.extents[count:], []
        if count:
            points = np.indices(access.extents[:count]).reshape(count, -1)
            level, _ = site.tracer.repeated(site.level, np.full(rows, points.shape[1]))
            inner, steps = site.at(level), [np.tile(row, rows)[:, None] for row in points]
        lows = [low.at(inner.level) for low in access.corner]
        firsts = [low + step for low, step in zip(lows, steps, strict=False)] + lows[count:]
        known = dict(zip(variables, firsts, strict=True))
        found = [[_line(inner, e, known, extents) for e in s.expressions] for s in subscripts]
        lines = [[line for line in own if line is not None] for own in found]
        if lines == found:
            break
    return inner, lines, extents, steps


def _line(
    site: Site, expression: Expression, firsts: dict[str, Array], extents: Shape
) -> Line | None:
    """An expression as a linear function of the variables from their values ``firsts`` on; None if
    it is none, or falls.
    """
    divides = any(word in str(expression) for word in ("floordiv", "ceildiv", "mod"))
    looked = extents if divides else tuple(min(extent, 2) for extent in extents)
    grid, wide = dict(zip(firsts, np.indices(looked), strict=True)), (..., *(None,) * len(extents))
    values = [
        firsts[name][wide] + grid[name] if name in firsts
        else site.number(name).at(site.level)[wide]
        for name in expression.names
    ]  # fmt: skip
    found = np.asarray(fold(expression.expr, values, (), INTEGERS))
    found = np.broadcast_to(found, np.broadcast_shapes(found.shape, (1, 1, *looked)))
    slopes = []
    for k, extent in enumerate(looked):
        step = np.diff(found, axis=2 + k) if extent > 1 else np.zeros(1, np.int64)
        if (step != step.flat[0]).any() or step.flat[0] < 0:
            return None
        slopes.append(int(step.flat[0]))
    return found.reshape(*found.shape[:2], -1)[:, :, 0], tuple(slopes)
