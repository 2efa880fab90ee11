"""linalg.generic: the operations of its body in order, over tiles seen through the maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spyre.hw.tiles.data import combiner_of, reduced
from spyre.hw.tiles.trace import Site
from spyre.hw.tiles.values import DataTile, Value


def trace_generic(site: Site) -> None:
    """State the body's operations, or the reduction that it is."""
    fields, kinds = site.op.fields, site.resolved("iterator_types")
    maps = [site.tracer.program.module.resolved(map_) for map_ in site.resolved("indexing_maps")]
    types = (*fields["!ins"], *fields["!outs"])
    if len(fields["!outs"]) != 1 or any(map_.permutation is None for map_ in maps):
        site.refuse("a map that is no choice of dims, or several outputs", "one output")
    extents: dict[int, int] = {}
    for map_, type_ in zip(maps, types, strict=True):
        extents.update(zip(map_.permutation, type_.extents, strict=True))
    shape = tuple(extents.get(d, 1) for d in range(len(kinds)))
    names = [*fields["ins"], *fields["outs"]]
    seen = [
        site.tile(name, type_.extents, type_.element).over(shape, map_.permutation)
        for name, map_, type_ in zip(names, maps, types, strict=True)
    ]
    to_output = maps[-1].permutation
    summed = [d for d, kind in enumerate(kinds) if kind.text == "reduction"]
    if summed:
        _reduction(site, summed, seen, to_output)
    elif len(to_output) != len(shape):
        site.refuse("an output that lacks a parallel dim", "all parallel dims")
    else:
        site.bind_computed(lambda target: _body(site, seen, shape, to_output, target))


def _body(
    site: Site,
    seen: Sequence[DataTile],
    shape: tuple[int, ...],
    to_output: tuple[int, ...],
    target: DataTile | None,
) -> DataTile:
    """The tile that the body yields; its last operation writes ``target``, if it can."""
    tracer, region = site.tracer, site.op.regions[0]
    order = tuple(sorted(range(len(shape)), key=to_output.index))
    inner, outer = None if target is None else target.permuted(order), tracer.targets
    (name,) = region.body[-1].fields["values"]
    tracer.targets = {} if inner is None else {name: inner}
    names: dict[str, Value] = {
        own: tile for (own, _), tile in zip(region.arguments, seen, strict=True)
    }
    (made,) = tracer.run_body(region.body, site.level, names)
    tracer.targets = outer
    tile = site.as_tile(made, shape, site.op.fields["!outs"][0].element)
    return target if tile is inner and target is not None else tile.permuted(to_output)


def _reduction(
    site: Site, summed: Sequence[int], seen: Sequence[DataTile], to_output: Sequence[int]
) -> None:
    """One operation of the input's element and the output's, over the reduction iterators."""
    source, start = seen[0], seen[-1]
    absent = [d for d, size in enumerate(source.shape) if not source.pitches[d] and size > 1]
    if len(seen) != 2 or any(d in summed for d in absent):
        site.refuse("a reduction of several inputs, or of a value that does not vary")
    if start.varies:
        site.refuse("a start value of a generic reduction", "tensor.empty or a constant")
    present = [d for d in range(len(source.shape)) if d not in absent]
    kept = [d for d in present if d not in summed]
    bare = replace(start, shape=tuple(source.shape[d] for d in kept), pitches=(0,) * len(kept))
    dims = tuple(map(present.index, summed))
    total = reduced(site, combiner_of(site), source.permuted(present), dims, bare)
    shape = tuple(source.shape[d] for d in to_output)
    site.bind(total.over(shape, [to_output.index(d) for d in kept]))
