"""Rules that the checker applies to each operation: one function per rule of the table.

A rule yields a fault for everything that contradicts the operation's meaning, once its operands
have the types that are written. Shapes are static here: ``?`` stays open until a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import msgspec

from spyre.mlir.program import (
    INTEGERS as INTEGER_ARITHMETIC,
    AffineMap,
    AffineSet,
    fold,
    slope_along,
)
from spyre.mlir.tiles.deliveries import Members, members, sources
from spyre.mlir.tiles.syntax import (
    BITS,
    FLOATS,
    INTEGERS,
    Alias,
    AttributeEntry,
    Opaque,
    Quoted,
    TileFunction,
    TileModule,
    TileOp,
    Type,
    memory_space,
    read_type,
)
from spyre.mlir.tiles.table import OperationRow, operation_rows
from spyre.rules import Fault

Faults = Iterator[Fault[int]]
MOST_TILES = 32
NO_ROW = OperationRow("")
PREDICATES: dict[str, tuple[str, ...]] = {
    "spyreop.compare": ("<equal>", "<notequal>", "<greaterthan>", "<greaterequal>", "<lesserthan>",
                        "<lesserequal>"),
    "arith.cmpi": ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"),
    "arith.cmpf": ("oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult",
                   "ule", "une", "uno", "true", "false"),
}  # fmt: skip
COMBINERS = ("addf", "mulf", "maximumf", "minimumf", "maxnumf", "minnumf", "addi", "muli", "maxsi",
             "minsi", "maxui", "minui")  # fmt: skip


class ScopedValue(msgspec.Struct):
    """A value in scope. ``defined_by``: its operation; None for arguments."""

    type: Type
    defined_by: TileOp | None = None
    uses: list[int] = msgspec.field(default_factory=list)


class Context(msgspec.Struct, frozen=True):
    """An operation in its function. ``scope``: the values before it, by name."""

    module: TileModule
    function: TileFunction
    op: TileOp
    scope: Mapping[str, ScopedValue]

    def type(self, key: str) -> Any:
        """The type written for field ``key``."""
        return self.op.fields.get(f"!{key}", ())

    def side(self, text: str) -> Any:
        """One side of an equation: a property of a type, a number of items, or a word."""
        if text[0] == "#":
            return len(self.op.fields[text[1:]])
        if "." not in text:
            return int(text) if text.isdigit() else text
        return getattr(self.type_of(text), text.partition(".")[2])

    def type_of(self, text: str) -> Type:
        """The type that a side is a property of."""
        key = text.partition(".")[0]
        type_ = self.scope[self.op.fields[key[1:]]].type if key[0] == "%" else self.type(key)
        found: Type = type_[0] if isinstance(type_, tuple) else type_
        return found

    def attribute(self, key: str) -> Any:
        """Value of an attribute, aliases resolved; None if it is not given."""
        return self.module.attribute(self.op, key)

    def type_of_value(self, name: str) -> Type | None:
        """The type of a value; None where it has none, as the variables of an operation."""
        return self.scope[name].type if name in self.scope else None

    def maker(self, name: str) -> TileOp | None:
        """The operation with a result of this name."""
        return self.scope[name].defined_by if name in self.scope else None

    def written(self, names: Sequence[str], types: Sequence[Type] | None) -> Faults:
        """Values whose types are not those that are written (SPY181, SPY183); None: nothing is."""
        count, wanted = len(names), len(names) if types is None else len(types)
        yield from self.equal("SPY183", "values and their types differ in number", wanted, count)
        for name, type_ in zip(names, types or (), strict=False):
            message = f"%{name} has another type than is written"
            yield from self.equal("SPY181", message, type_, self.type_of_value(name) or "index")

    def equal(self, code: str, message: str, expected: object, found: object) -> Faults:
        """A fault if two things differ."""
        if expected != found:
            yield self.fault(code, message, expected, found)

    def fault(
        self, code: str, message: str, expected: object = "", found: object = ""
    ) -> Fault[int]:
        """A fault of this operation."""
        text = f"{self.op.name}: {message}"
        return Fault(code, self.op.position, text, str(expected), str(found))


def grid_of(function: TileFunction) -> tuple[tuple[int, ...], list[Fault[int]]]:
    """Return the extents of the grid, and the faults found in them (SPY188)."""
    entry = next((e for e in function.attributes if e.key == "grid"), None)
    if entry is None:
        return (1,), []
    extents = integers(entry.value) or ()
    if 1 <= len(extents) <= 3 and min(extents) > 0 and prod(extents) <= MOST_TILES:
        return extents, []
    expected = f"1 to 3 positive extents, at most {MOST_TILES} tiles in all"
    found = "×".join(map(str, extents)) or "no integers"
    return (1,), [Fault("SPY188", entry.position, "the grid is wrong", expected, found)]


def attribute_faults(module: TileModule, value: Any, place: int) -> Faults:
    """Aliases that are not defined (SPY134), wrong memory spaces and annotations of a value."""
    if isinstance(value, tuple):
        for item in value:
            yield from attribute_faults(module, item, place)
    elif isinstance(value, AttributeEntry):
        yield from attribute_faults(module, value.value, value.position)
    elif isinstance(value, Alias):
        if module.resolved(value) is None:
            yield Fault("SPY134", place, f"{value} is not defined", "an alias of this text")
    elif isinstance(value, Type):
        yield from _type_faults(module, value, place)
    elif isinstance(value, Opaque) and "memory_space<" in value.text:
        yield from _space_faults(value.text, place)


def _type_faults(module: TileModule, type_: Type, place: int) -> Faults:
    for detail in type_.details:
        if type_.kind == "runtime_arg" and detail[1] <= 0:
            message = f"{detail[0]} of a runtime_arg is not positive"
            yield Fault("SPY126", place, message, "a positive integer", str(detail[1]))
        elif type_.kind == "memref" and not detail.startswith(("strided<", "affine_map<")):
            yield from _space_faults(detail, place)
        elif type_.kind == "tile_future" and detail[:1] == "#":
            yield from attribute_faults(module, Alias(detail[1:]), place)


def _space_faults(text: str, place: int) -> Faults:
    space = memory_space(text)
    expected = "global, ct_local (or HBM, LX, unspecified); a core only where memory is a core's"
    if space is None or (space.tile is not None and (not space.is_local or space.tile < 0)):
        yield Fault("SPY187", place, "this memory space does not exist", expected, text)


# --- memory -----------------------------------------------------------------------------------


def _tile_id(context: Context) -> Faults:
    grid = grid_of(context.function)[0]
    count = len(context.op.results)
    if count < len(grid) and prod(grid[count:] if count > 1 else sorted(grid)[:-1]) > 1:
        message = f"{count} tile ids for a grid of {'×'.join(map(str, grid))}"
        yield context.fault("SPY188", message, f"{len(grid)} results, or extents of 1", count)
    for type_ in context.type("result"):
        yield from context.equal("SPY182", "a tile id is an index", "index", str(type_))


def _view(context: Context) -> Faults:
    """The coordinate set of a view that is not part of another restates its sizes."""
    type_, sizes = context.type("result"), context.op.fields["sizes"]
    for k, (size, extent) in enumerate(zip(sizes, type_.shape, strict=True)):
        if isinstance(size, int):
            yield from context.equal("SPY184", f"size {k} is not that of the type", extent, size)
    space = context.op.attribute("memory_space")
    if space is not None and "memory_space<" not in str(space.value):
        yield from _space_faults(str(space.value), context.op.position)
    points = context.attribute("coordinate_set")
    if points is None:
        return
    if not isinstance(points, AffineSet):
        yield context.fault("SPY187", "coordinate_set is no set", "affine_set<…>", points)
    elif points.n_dims != len(sizes):
        message = "coordinate_set has another number of dims than the view"
        yield context.fault("SPY183", message, len(sizes), points.n_dims)
    elif not _fits(type_, extents := _extents(points)):
        yield context.fault("SPY195", "coordinate_set and sizes differ", type_, extents)


def _extents(points: AffineSet) -> tuple[int, ...] | None:
    """Extents of a box without symbols; None of other sets."""
    box = None if points.n_symbols else points.box(())
    return None if box is None else tuple(int(high - low) + 1 for low, high in box)


def _fits(type_: Type, extents: Sequence[int] | None) -> bool:
    """True if the extents are those of a type, where both are known."""
    pairs = zip(type_.shape, extents or type_.shape, strict=True)
    return all(own is None or own == extent for own, extent in pairs)


def _distributed(context: Context) -> Faults:
    result = context.type("result")
    for view in context.type("views"):
        if view.element != result.element or view.rank != result.rank:
            message = "a part has another element type or rank than the whole"
            yield context.fault("SPY181", message, result, view)


def _access_tile(context: Context) -> Faults:
    rank, indices = context.type("view").rank, context.op.fields["indices"]
    base_map = context.attribute("base_map")
    operands = base_map.n_dims if isinstance(base_map, AffineMap) else rank
    if len(indices) != operands:
        message = f"{len(indices)} indices for a view of {rank} dims"
        yield context.fault("SPY183", message, f"{operands} indices", len(indices))
        return
    if isinstance(base_map, AffineMap) and len(base_map.results) != rank:
        yield context.fault("SPY183", "base_map has another rank than the view", rank, base_map)
    yield from _tile_shape(context, "access_tile", rank)


def _tile_shape(context: Context, prefix: str, rank: int) -> Faults:
    """The set's extents in the given order are the shape of the access tile."""
    points, order = context.attribute(f"{prefix}_set"), context.attribute(f"{prefix}_order")
    tile, count = context.type("result"), len(context.op.fields.get("symbols", ()))
    if tile.kind != "access_tile":
        yield context.fault("SPY182", "the result is no access tile", "!ktdp.access_tile<…>", tile)
        return
    if not isinstance(points, AffineSet):
        expected = f"{prefix}_set = affine_set<…>"
        yield context.fault("SPY187", f"{prefix}_set is missing", expected, points)
        return
    message = f"{prefix}_set and symbols(…) differ in number"
    yield from context.equal("SPY183", message, points.n_symbols, count)
    if points.n_dims != rank or tile.rank != rank:
        found = f"{points.n_dims} dims, {tile}"
        yield context.fault("SPY183", f"{prefix}_set has another rank", f"{rank} dims", found)
        return
    permutation = tuple(range(rank))
    if order is not None:
        given = order.permutation if isinstance(order, AffineMap) else None
        if given is None or sorted(given) != list(permutation) or order.n_dims != rank:
            yield context.fault("SPY187", f"{prefix}_order is no permutation", permutation, order)
            return
        permutation = given
    extents = _extents(points)
    if extents is not None and not _fits(tile, own := [extents[k] for k in permutation]):
        shown = "x".join(map(str, own))
        yield context.fault("SPY185", f"{prefix}_set has other extents than the type", tile, shown)


def _indirect_tile(context: Context) -> Faults:
    fields = context.op.fields
    subscripts, memrefs = fields["subscripts"], fields["!memrefs"]
    indirect = [s for s in subscripts if s.view is not None]
    yield from context.written([fields["view"], *(s.view for s in indirect)], memrefs)
    if len(memrefs) != len(indirect) + 1:
        return
    message = f"{len(subscripts)} subscripts for a view of {memrefs[0].rank} dims"
    yield from context.equal("SPY183", message, memrefs[0].rank, len(subscripts))
    for subscript, written in zip(indirect, memrefs[1:], strict=True):
        if len(subscript.expressions) != written.rank:
            message = f"{len(subscript.expressions)} indices for %{subscript.view}"
            yield context.fault("SPY183", message, f"{written.rank} indices")
    yield from _tile_shape(context, "variables_space", len(fields["^variables"]))


def _element(context: Context) -> Faults:
    """The value has the element type of the view that its tile is of."""
    tile = context.maker(context.op.fields["tile"])
    fields = {} if tile is None else tile.fields
    view = fields.get("!view") or fields.get("!memrefs", (None,))[0]
    value = context.op.fields.get("!value") or context.op.fields["!result"]
    if view is not None and view.element != value.element:
        yield context.fault("SPY181", "the view has other elements", view, value)


def _aliasing(context: Context) -> Faults:
    """A view whose strides let one store write an element twice."""
    tile = context.maker(context.op.fields["tile"])
    view = context.maker(tile.fields["view"]) if tile and "view" in tile.fields else None
    if view is None or "strides" not in view.fields or None in view.fields["!result"].shape:
        return
    assert tile is not None
    shape, strides = context.type("tile").shape, view.fields["strides"]
    map_ = context.module.attribute(tile, "access_tile_order")
    permutation = map_.permutation if isinstance(map_, AffineMap) else range(len(shape))
    if permutation is None or not all(isinstance(s, int) for s in strides) or None in shape:
        return
    if found := overlap([strides[d] for d in permutation], shape):
        yield context.fault("SPY192", OVERLAP, f"a stride above {found[0]}", found[1])


OVERLAP = "the view's strides overlap, so that elements are written twice"


def overlap(strides: Sequence[int], extents: Sequence[int]) -> tuple[int, int] | None:
    """How far smaller strides reach, and a stride that is not above it; None if all are."""
    reach = 0
    for stride, extent in sorted(zip(strides, extents, strict=True)):
        if extent > 1 and stride <= reach:
            return reach, stride
        reach += stride * (extent - 1)
    return None


def _extract_argument(context: Context) -> Faults:
    argument, result = context.type("argument"), context.type("result")
    field = context.op.fields["field"].text
    annotations = dict(argument.details) if argument.kind == "runtime_arg" else {}
    wanted = argument.element if field == "value" else "index"
    if field not in ("value", "granularity", "upperbound"):
        expected = "value, granularity or upperbound"
        yield context.fault("SPY128", "this cannot be extracted", expected, field)
    elif field != "value" and field not in annotations:
        yield context.fault("SPY139", f"the argument has no {field}", argument)
    elif result.kind not in {"int": INTEGERS, "float": FLOATS}.get(wanted, (wanted,)):
        yield context.fault("SPY138", f"type of the {field}", wanted, result)


# --- deliveries ------------------------------------------------------------------------------


def _group_faults(context: Context, key: str, future: Type) -> Faults:
    """Sets of tiles: there are some, in the grid, and no tile is in two groups (R1)."""
    n_tiles = prod(grid_of(context.function)[0])
    found = members(context.module, context.op.fields[key], future)
    if found is None:
        yield context.fault("SPY190", f"{key} are no set of tiles", "affine_set<(i)[g] : (…)>")
        return
    tiles = [tile for group in found for tile in group]
    if outside := [tile for tile in tiles if not 0 <= tile < n_tiles]:
        message = f"{key} are outside of the grid"
        yield context.fault("SPY190", message, f"tiles 0 … {n_tiles - 1}", outside)
    if repeated := sorted({tile for tile in tiles if tiles.count(tile) > 1}):
        message = f"tiles are in several groups of {key}"
        yield context.fault("SPY190", message, "each tile in one group", repeated)
    if not tiles:
        yield context.fault("SPY190", f"there are no {key}", "at least one tile")


def _produce(context: Context) -> Faults:
    """inter_tile_produce."""
    future = context.type("result")
    if future.kind != "tile_future":
        expected = "!ktdp.tile_future<(…), groups = …>"
        yield context.fault("SPY182", "the result is no future", expected, future)
        return
    yield from _group_faults(context, "producers", future)


def _deliver(context: Context) -> Faults:
    """inter_tile_reduce and inter_tile_consume."""
    module, op, future = context.module, context.op, context.type("future")
    if future.kind != "tile_future":
        yield context.fault("SPY182", "the operand is no future", "!ktdp.tile_future<…>", future)
        return
    parts, starts = future.details[0], op.fields.get("!identity", ())
    for key, types in (("result", context.type("result")), ("identity", starts)):
        if key == "result" or op.name == "ktdp.inter_tile_reduce":
            message = f"number of parts of the future and of {key}"
            yield from context.equal("SPY183", message, len(parts), len(types))
        for part, type_ in zip(parts, types, strict=False):
            if (part.element, part.count) != (type_.element, type_.count):
                message = f"{key} and the future's part differ in type"
                yield context.fault("SPY181", message, part, type_)
    faults = list(_group_faults(context, "consumers", future))
    yield from faults
    made = context.maker(op.fields["future"])
    if faults or made is None or "producers" not in made.fields:
        return
    producers = members(module, made.fields["producers"], future)
    consumers = members(module, op.fields["consumers"], future)
    if producers is not None and consumers is not None:
        yield from _dependencies(context, producers, consumers)


def _dependencies(context: Context, producers: Members, consumers: Members) -> Faults:
    """Each consumer depends on producers of its group only (R3), on equally many (R6), and every
    producer is named (R4); consume has one source.
    """
    needed = sources(context.module, context.op, producers, consumers)
    for made, wanted in zip(producers, consumers, strict=True):
        for consumer in wanted:
            if strangers := [tile for tile in needed[consumer] if tile not in made]:
                message = f"tile {consumer} depends on tiles {strangers}, which do not produce"
                yield context.fault("SPY190", message, f"producers {list(made)}", strangers)
                return
        named = {tile for consumer in wanted for tile in needed[consumer]}
        if unused := sorted({*made} - named) if wanted else []:
            message = f"producers {unused} are named by no consumer"
            yield context.fault("SPY190", message, "a consumer for each producer", unused)
    counts = {len(tiles) for tiles in needed.values()}
    if len(counts) > 1:
        message = "consumers depend on different numbers of producers"
        yield context.fault("SPY190", message, "equally many", sorted(counts))
    elif context.op.name == "ktdp.inter_tile_consume" and counts != {1}:
        yield context.fault("SPY190", "a consumer has several producers", 1, max(counts))


# --- values -----------------------------------------------------------------------------------


def _constant(context: Context) -> Faults:
    value, type_ = context.op.fields["value"], context.op.fields.get("!result")
    text, number = value.text, getattr(value, "value", None)
    if type_ is None:
        if text not in ("true", "false"):
            yield context.fault("SPY182", "a constant has no type", ": index, f32, …", value)
        return
    is_dense = text.startswith("dense<")
    if is_dense != (type_.kind == "tensor"):
        yield context.fault("SPY182", "value and type do not fit", "dense<…> : tensor<…>", type_)
    elif is_dense and text[6:].strip()[:1] == "[" and len(text.split(",")) != type_.count:
        given = len(text.split(","))
        yield context.fault("SPY184", "numbers and elements differ", type_, given)
    elif is_dense and text[6:7] != '"' and "x" not in text:
        is_fraction = any("." in word for word in text[6:].split(","))
        if is_fraction != (type_.element in FLOATS):
            yield context.fault("SPY182", "numbers of another kind", type_, text)
    elif (
        number is not None
        and "x" not in text
        and isinstance(number, float) == (type_.kind in INTEGERS)
    ):
        kind = "an integer" if type_.kind in INTEGERS else "a fraction"
        yield context.fault("SPY182", "a number of another kind", f"{kind} of {type_}", value)
    elif isinstance(number, int):
        bits = BITS[type_.kind]
        if not -(2 ** (bits - 1)) <= number < 2**bits:
            yield context.fault("SPY115", f"the number has more than {bits} bits", type_, value)


def _predicate(context: Context) -> Faults:
    given, known = str(context.op.fields["predicate"]), PREDICATES[context.op.name]
    if given not in known:
        yield context.fault("SPY187", "unknown predicate", f"one of {', '.join(known)}", given)


def _select(context: Context) -> Faults:
    fields, types = context.op.fields, context.op.fields["!types"]
    names, count = [fields["a"], fields["b"], fields["condition"]], len(types) + 1
    yield from context.written(names[:count], (types[-1], types[-1], types[0])[:count])
    condition = context.scope[fields["condition"]].type
    if condition.scalar != "i1" or (condition.shape and condition.shape != types[-1].shape):
        yield context.fault("SPY182", "the condition is no i1 of this shape", "i1", condition)


def _width(context: Context) -> Faults:
    """Casts named after a direction change the number of bits in it."""
    source, target = (BITS[context.type(key).scalar] for key in ("a", "result"))
    widens = "ext" in context.op.name
    if source == target or (source < target) != widens:
        expected = "more bits" if widens else "fewer bits"
        yield context.fault("SPY182", "this cast", expected, context.type("result"))


def _static(context: Context) -> Faults:
    type_ = context.type("result")
    if type_.kind != "tensor" or None in type_.shape:
        yield context.fault("SPY182", "sizes of tiles are static", "tensor<…> without ?", type_)


# --- linalg -----------------------------------------------------------------------------------


def integers(value: Any) -> tuple[int, ...] | None:
    """Integers of an attribute; None if it is something else."""
    items = [getattr(item, "value", None) for item in value] if isinstance(value, tuple) else [None]
    found = tuple(item for item in items if isinstance(item, int))
    return found if len(found) == len(items) else None


def _broadcast(context: Context) -> Faults:
    (source,), (target,) = context.type("ins"), context.type("outs")
    dims = integers(context.op.fields["dimensions"])
    kept = tuple(e for k, e in enumerate(target.shape) if k not in (dims or ()))
    if dims is None or kept != source.shape or source.element != target.element:
        message = f"dimensions {dims} do not lead from ins to outs"
        yield context.fault("SPY184", message, f"ins of {kept}", f"{source}, {target}")


def _transpose(context: Context) -> Faults:
    (source,), (target,) = context.type("ins"), context.type("outs")
    order = integers(context.op.fields["permutation"])
    if order is None or sorted(order) != list(range(source.rank)):
        expected = f"each of 0 … {source.rank - 1} once"
        yield context.fault("SPY187", "permutation is none", expected, order)
    elif tuple(source.shape[k] for k in order) != target.shape or source.element != target.element:
        yield context.fault("SPY184", "outs does not have the permuted shape", source, target)


def _equal(context: Context) -> Faults:
    types = (*context.type("ins"), *context.type("outs"))
    for type_ in types[1:]:
        yield from context.equal("SPY184", "operands differ in type", types[0], type_)


def _map(context: Context) -> Faults:
    """The operation of every element: a name, or a region."""
    combiner, (target,) = context.op.fields.get("combiner"), context.type("outs")
    if (combiner is None) == (not context.op.regions):
        yield context.fault("SPY187", "there is no operation", "{ arith.addf } or a region")
    elif combiner is not None and not operation_rows().get(combiner.text, NO_ROW).engine:
        yield context.fault("SPY187", "this is no operation of elements", "arith.addf", combiner)
    for type_ in (*context.type("ins"), target):
        yield from context.equal("SPY184", "operands differ in shape", target.shape, type_.shape)
        if combiner is not None:
            yield from _taken(context, combiner.text, type_)


def _taken(context: Context, name: str, type_: Type) -> Faults:
    """A fault if an operation in braces does not take the elements of a type."""
    kinds = operation_rows().get(name, operation_rows().get(f"arith.{name}", NO_ROW)).kinds
    wanted = "integer" if type_.element in INTEGERS else "float"
    if wanted not in kinds.split():
        yield context.fault("SPY182", f"{name} does not take these elements", kinds, type_)


def _groups(context: Context) -> Faults:
    """Each dim of the shape with fewer is a group of neighbours of the other's dims."""
    wide, narrow = context.type("value").shape, (shape := context.type("result").shape)
    if context.op.name == "tensor.expand_shape":
        wide, narrow = narrow, wide
    groups = [integers(group) for group in context.op.fields["groups"]]
    dims = [d for group in groups for d in group or ()]
    fits = dims == list(range(len(wide))) if groups else not narrow
    if not fits or tuple(prod(wide[d] or 0 for d in g or ()) for g in groups) != narrow:
        expected = " and ".join(map(str, (wide, narrow)))
        yield context.fault("SPY184", "the groups of dims do not fit", expected, groups)
    for size, extent in zip(context.op.fields.get("sizes", ()), shape, strict=False):
        if isinstance(size, int):
            yield from context.equal("SPY184", "output_shape is not that of the type", extent, size)


def _elements(context: Context) -> Faults:
    values = context.op.fields["values"]
    element = read_type(context.type("result").element)
    yield from context.written(values, [element] * len(values))


def _softplus(context: Context) -> Faults:
    if not context.op.fields["beta"].value:
        yield context.fault("SPY187", "beta is 0", "another number", 0)


def _reduce(context: Context) -> Faults:
    dims, combiner = integers(context.op.fields["dimensions"]), context.op.fields.get("combiner")
    ins, outs = context.type("ins"), context.type("outs")
    if combiner is not None:
        name = combiner.text.removeprefix("arith.")
        if name not in COMBINERS:
            expected = f"arith.{', arith.'.join(COMBINERS)}"
            yield context.fault("SPY187", "this is no combiner", expected, combiner)
        for source, target in zip(ins, outs, strict=False):
            yield from _taken(context, combiner.text, source)
            yield from context.equal("SPY182", "elements", source.element, target.element)
    elif not context.op.regions:
        yield context.fault("SPY187", "there is no combiner", "{ arith.addf } or a region")
    yield from context.equal("SPY183", "ins and outs differ in number", len(ins), len(outs))
    for source, target in zip(ins, outs, strict=False):
        rank = source.rank
        if dims is None or not all(0 <= d < rank for d in dims) or len({*dims}) != len(dims):
            expected = f"distinct dims below {rank}"
            yield context.fault("SPY187", "dimensions are wrong", expected, dims)
        elif tuple(e for k, e in enumerate(source.shape) if k not in dims) != target.shape:
            yield context.fault("SPY184", f"outs is not ins without dims {dims}", source, target)


def _matmul(context: Context) -> Faults:
    ins, outs = context.type("ins"), context.type("outs")
    rank, every = 3 if context.op.name.endswith("batch_matmul") else 2, (*ins, *outs)
    if len(ins) != 2 or len(outs) != 1 or any(t.rank != rank for t in every):
        yield context.fault("SPY183", "operands", f"two ins and one outs of rank {rank}")
        return
    if others := [t for t in every if t.element not in FLOATS]:
        yield context.fault("SPY182", "elements", " or ".join(FLOATS), others[0])
    (*batch, m, k), (*other, inner, n) = (t.shape for t in ins)
    if k != inner or batch != other or outs[0].shape != (*batch, m, n):
        shown = ", ".join(map(str, every))
        yield context.fault("SPY184", "sizes do not fit", "m×k, k×n and m×n", shown)


def _generic(context: Context) -> Faults:
    iterators = context.attribute("iterator_types")
    types = (*context.type("ins"), *context.op.fields.get("!outs", ()))
    maps = [context.module.resolved(m) for m in context.attribute("indexing_maps") or ()]
    if len(maps) != len(types) or not all(isinstance(m, AffineMap) for m in maps):
        yield context.fault("SPY183", "indexing_maps", f"{len(types)} maps", len(maps))
        return
    kinds = [k.text for k in iterators or () if isinstance(k, Quoted)]
    n_dims = {m.n_dims for m in maps}
    if n_dims != {len(kinds)} or not {*kinds} <= {"parallel", "reduction"}:
        expected = f"{max(n_dims)} of parallel or reduction"
        yield context.fault("SPY183", "iterator_types", expected, kinds)
        return
    extents: dict[int, int | None] = {}
    pairs = list(zip(maps, types, strict=True))
    for map_, type_ in pairs:
        if len(map_.results) != type_.rank:
            yield context.fault("SPY183", "a map has another rank than its operand", type_, map_)
            continue
        for result, extent in zip(map_.results, type_.shape, strict=True):
            if (d := getattr(result, "index", None)) is not None:
                known, message = extents.setdefault(d, extent), f"dim d{d} has two extents"
                yield from context.equal("SPY184", message, known, extent)
    sizes = [extents.get(d) for d in range(len(kinds))]
    for map_, type_ in pairs:
        for result, extent in zip(map_.results, type_.shape, strict=False):
            last = _last(result, sizes)
            if last is not None and extent is not None and last >= extent:
                yield context.fault("SPY184", f"{result} leaves its operand", type_, last)


def _last(expr: Any, extents: Sequence[int | None]) -> int | None:
    """The largest value of a linear expression; None if it is not known."""
    ends = []
    for d, extent in enumerate(extents):
        slope = slope_along(expr, d)
        if slope is None or (slope and extent is None):
            return None
        ends.append((extent or 1) - 1 if slope > 0 else 0)
    found: int = fold(expr, ends, (), INTEGER_ARITHMETIC)
    return found


def _index(context: Context) -> Faults:
    """linalg.index is in a linalg.generic that has the dim."""
    around = (o for o in context.function.walk() if o.name == "linalg.generic")
    op = next((o for o in around if any(i is context.op for i in o.inside())), None)
    rank = len(context.module.attribute(op, "iterator_types") or ()) if op is not None else 0
    dim = getattr(context.op.fields["dim"], "value", -1)
    if not 0 <= dim < rank:
        yield context.fault("SPY187", "no iterator has this number", f"0 to {rank - 1}", dim)


# --- tensors and control ----------------------------------------------------------------------


def _slice(context: Context) -> Faults:
    source, target = context.type("value"), context.type("result")
    if context.op.name == "tensor.insert_slice":
        source, target = target, source
    groups = [context.op.fields[key] for key in ("offsets", "sizes", "strides")]
    if any(len(group) != source.rank for group in groups):
        yield context.fault("SPY183", "offsets, sizes and strides", f"{source.rank} each")
        return
    if source.element != target.element or not all(isinstance(s, int) for s in groups[1]):
        message = "sizes of slices are static, elements the same"
        yield context.fault("SPY184", message, source, target)
    elif prod(groups[1]) != target.count:
        yield context.fault("SPY184", "the slice has another shape", groups[1], target)
    for k, (offset, size, stride) in enumerate(zip(*groups, strict=True)):
        extent = source.shape[k]
        if isinstance(stride, int) and stride < 1:
            yield context.fault("SPY184", f"stride {k} of the slice", "at least 1", stride)
        elif isinstance(offset, int) and isinstance(stride, int) and extent is not None:
            last = offset + (size - 1) * stride
            if not (0 <= offset <= last < extent or size == 0):
                yield context.fault("SPY184", f"dim {k} of the slice ends outside", extent, last)


def _branches(context: Context) -> Faults:
    if context.op.fields.get("!result") and len(context.op.regions) != 2:
        yield context.fault("SPY183", "results need both branches", "else { … }")


def _for(context: Context) -> Faults:
    fields = context.op.fields
    if (sign := fields.get("sign")) and sign.text != "unsigned":
        yield context.fault("SPY187", "this word is none of a loop", "unsigned", sign)
    kind = fields["!T"].kind if "!T" in fields else "index"
    for key in ("lower", "upper", "step"):
        found, message = context.scope[fields[key]].type.kind, f"%{fields[key]} has another type"
        yield from context.equal("SPY181", message, kind, found)
    yield from context.written(fields.get("inits", ()), fields.get("!types", ()))


RULES: dict[str, Callable[[Context], Faults]] = {
    rule.__name__.strip("_"): rule
    for rule in (
        _tile_id, _view, _distributed, _access_tile, _indirect_tile, _aliasing, _extract_argument,
        _produce, _deliver, _constant, _element, _index, _width, _predicate, _select, _static,
        _broadcast, _transpose, _reduce, _map, _groups, _elements, _softplus, _matmul,
        _equal, _generic, _slice, _for, _branches,
    )
}  # fmt: skip
_CODES = {"kind": "SPY182", "element": "SPY181", "shape": "SPY184", "count": "SPY184"}


def rule_faults(context: Context, rule: str) -> Faults:
    """Contradictions to the rule of a row, up to the first of its parts that does not hold.

    Parts are names of functions, and equations ``side = side``. A side is a property of the type
    written for a field (``tile.shape``) or of the type of a field's value (``%value.kind``), a
    field's number of items (``#sizes``), or a word.
    """
    for part in filter(None, rule.split("; ")):
        left, _, right = part.partition(" = ")
        faults = list(_equation(context, left, right) if right else RULES[left](context))
        yield from faults
        if faults:
            return


def _equation(context: Context, left: str, right: str) -> Faults:
    found, expected = context.side(left), context.side(right)
    if found == expected:
        return
    (field, _, name), other = left.lstrip("%#").partition("."), right.partition(".")[0].lstrip("#")
    message = f"{name or 'number'} of {field}"
    if "." in right or right[0] == "#":
        message += f" and of {other} differ"
        found = context.type_of(left) if "." in left else found
        expected = context.type_of(right) if "." in right else expected
    yield context.fault(_CODES.get(name, "SPY183"), message, expected, found)
