"""A plain interpreter of KTIR over its tree: one tile after another, one element type at a time.

Slow and obvious, and independent of the engine: numpy arrays for tiles, Python numbers for scalars,
flat arrays for memory. A tile runs until it waits for a delivery; then the next one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from math import prod
from typing import Any

import msgspec
import numpy as np

from spyre.hw.reference.definitions import sum_in_chunks
from spyre.mlir.program import INTEGERS, fold
from spyre.mlir.tiles import KtirProgram

SINGLE = np.float32
BYTES = {"f16": 2, "f32": 4, "i32": 4}
PREDICATES = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.fmax,
    "min": np.fmin,
}  # fmt: skip
UNARY = {"neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "floor": np.floor, "exp": np.exp}
NAMES = {
    "addf": "add", "subf": "sub", "mulf": "mul", "divf": "div", "maximumf": "max",
    "minimumf": "min", "maxnumf": "max", "minnumf": "min", "negf": "neg", "absf": "abs",
}  # fmt: skip
SCALAR = {
    "addi": lambda a, b: a + b, "subi": lambda a, b: a - b, "muli": lambda a, b: a * b,
    "divsi": lambda a, b: int(a / b), "remsi": lambda a, b: a - b * int(a / b),
    "divui": lambda a, b: a // b, "remui": lambda a, b: a % b,
    "minsi": np.minimum, "maxsi": np.maximum,
}  # fmt: skip
TERMINATORS = ("scf.yield", "linalg.yield", "ktdp.yield_partial", "ktdp.yield_reduced")
WHOLE = {"add": 0.0, "mul": 1.0, "max": -np.inf, "min": np.inf}


class Memory(msgspec.Struct):
    """Elements at a pointer: float32 or int32 values, whatever they are stored as."""

    values: np.ndarray
    name: str = ""


class Address(msgspec.Struct):
    memory: Memory
    element: int

    def __add__(self, other):
        return Address(self.memory, self.element + other)

    __radd__ = __add__


class Part(msgspec.Struct):
    """``memory`` None: zeros outside."""

    memory: Memory
    base: int
    strides: tuple[int, ...]
    corner: tuple[int, ...]
    sizes: tuple[int, ...]

    def position(self, point):
        """Position of the element at ``point`` in memory; None outside."""
        own = [p - c for p, c in zip(point, self.corner, strict=True)]
        if not all(0 <= x < n for x, n in zip(own, self.sizes, strict=True)):
            return None
        return self.base + sum(x * s for x, s in zip(own, self.strides, strict=True))


class View(msgspec.Struct):
    parts: list[Part]
    element: str
    op: Any
    symbols: list[int] = msgspec.field(default_factory=list)

    def position(self, point):
        places = [(part, part.position(point)) for part in self.parts]
        return next(((part, place) for part, place in places if place is not None), None)


class Points(msgspec.Struct):
    """An access tile: the point of the view at every coordinate of the tile."""

    view: View
    shape: tuple[int, ...]
    point: Callable[[tuple[int, ...]], tuple[int, ...]]


class Plain:
    """One run. ``half``: rounds float32 to the run's 16-bit format; ``chunks``: rules of the number
    mode in which sums of that format add up in chunks.
    """

    def __init__(self, program: KtirProgram, half: Callable[[np.ndarray], np.ndarray], chunks=None):
        self.program, self.module, self.half, self.chunks = program, program.module, half, chunks

    def run(self, given: Mapping[str, Any], function: str | None = None) -> dict[str, np.ndarray]:
        """Memory of every pointer after the run, float32 or int32."""
        own = self.program.function(function)
        memories = {}
        for name, value in given.items():
            if isinstance(value, np.ndarray):
                flat = value.ravel()
                kept = flat.astype(np.int32 if flat.dtype.kind == "i" else SINGLE)
                memories[name] = Memory(self.half(kept) if flat.dtype == np.float16 else kept, name)
        grid = self.program.grid(own.name)
        self.delivered: dict[tuple[str, int], Any] = {}
        waiting = []
        for tile in range(prod(grid)):
            names = {
                p.name: Address(memories[p.name], 0) if p.name in memories else given[p.name]
                for p in own.parameters
            }
            scratch = {element: Memory(np.zeros(1 << 20, SINGLE)) for element in BYTES}
            waiting.append(Tile(self, tile, grid, scratch).block(own.body, names))
        while waiting:
            waiting = [tile for tile in waiting if next(tile, "end") != "end"]
        return {name: memory.values for name, memory in memories.items()}

    def rounded(self, values, element):
        with np.errstate(all="ignore"):
            if element == "f16":
                return self.half(np.asarray(values, SINGLE))
            return np.asarray(values, SINGLE if element == "f32" else np.int32)


class Tile:
    """One tile. ``block`` is a generator: it yields where the tile waits for others."""

    def __init__(self, run: Plain, number: int, grid, scratch) -> None:
        self.run, self.number, self.grid, self.scratch = run, number, grid, scratch

    def block(self, body, names) -> Generator[str, None, tuple]:
        """Run the operations of a block; its result is what it yields at its end."""
        for op in body:
            own = getattr(self, f"_{op.name.replace('.', '_')}", None)
            if op.name in TERMINATORS:
                return tuple(names[name] for name in op.fields.get("values", ()))
            found = own(op, names) if own else self._simple(op, names)
            if isinstance(found, Generator):
                found = yield from found
            found = found if isinstance(found, tuple) else (found,)
            names.update(zip(op.results, found, strict=False))
        return ()

    # --- scalars and elementwise --------------------------------------------------------------

    def _simple(self, op, names):
        dialect, _, name = op.name.partition(".")
        values = [names[use] for use in op.uses()]
        if dialect == "linalg":
            type_ = op.fields["!outs"][0]
            values = values[: len(op.fields["ins"])]
        else:
            fields = op.fields
            type_ = fields.get("!T") or fields.get("!result") or fields["!types"][-1]
        name = NAMES.get(name, name)
        with np.errstate(all="ignore"):
            if name == "cmpf":
                return self._compared(op.fields["predicate"].text, *values)
            if name == "cmpi":
                return PREDICATES[op.fields["predicate"].text[-2:]](*values)
            if name == "select":
                return np.where(*values) if np.ndim(values[0]) else values[1 if values[0] else 2]
            if name in SCALAR:
                found = SCALAR[name](*values)
                is_data = type_.scalar == "i32" and isinstance(found, np.ndarray)
                return found.astype(np.int32) if is_data else found
            if name in ("andi", "ori", "xori"):
                return {"andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor}[name](
                    *values
                )
            if name in ("extf", "truncf", "sitofp", "uitofp", "fptosi"):
                return self.run.rounded(values[0], type_.scalar)
            if name in ("index_cast", "extsi", "trunci", "extui"):
                return values[0]
            found = (BINARY | UNARY)[name](*(np.asarray(v, SINGLE) for v in values))
        return self.run.rounded(found, type_.scalar)

    def _compared(self, predicate, a, b):
        """Predicates that begin with u hold where a number is NaN, others do not."""
        unordered = np.isnan(a) | np.isnan(b)
        if predicate in ("ord", "uno"):
            return unordered if predicate == "uno" else ~unordered
        found = PREDICATES[predicate[-2:]](a, b)
        return found | unordered if predicate[0] == "u" else found & ~unordered

    def _linalg_map(self, op, names):
        values = [names[name] for name in op.fields["ins"]]
        element = op.fields["!outs"][0].element
        if not op.regions:
            name = NAMES[op.fields["combiner"].text.partition(".")[2]]
            with np.errstate(all="ignore"):
                return self.run.rounded((BINARY | UNARY)[name](*values), element)
        own = [name for name, _ in op.regions[0].arguments]
        scope = {**names, **dict(zip(own, values, strict=False))}
        (found,) = yield from self.block(op.regions[0].body, scope)
        return found

    def _arith_constant(self, op, names):
        type_, text = op.fields["!result"], str(op.fields["value"])
        numbers = [
            float(t) for t in text.removeprefix("dense<").strip("<>[]").split(":")[0].split(",")
        ]
        if not type_.is_shaped:
            floats = type_.scalar in ("f16", "f32")
            return self.run.rounded(numbers[0], type_.scalar) if floats else int(numbers[0])
        wide = np.array(numbers if len(numbers) > 1 else numbers * prod(type_.extents))
        return self.run.rounded(wide.reshape(type_.extents), type_.element)

    def _ktdp_get_compute_tile_id(self, op, names):
        if len(op.results) == 1:
            return self.number
        rest, found = self.number, []
        for extent in self.grid:
            found.append(rest % extent)
            rest //= extent
        return tuple(found)

    def _return(self, op, names):
        return ()

    # --- memory -------------------------------------------------------------------------------

    def _value(self, item, names):
        return names[item] if isinstance(item, str) else item

    def _ktdp_construct_memory_view(self, op, names):
        type_, fields = op.fields["!result"], op.fields
        sizes, strides = (
            tuple(self._value(item, names) for item in fields[key]) for key in ("sizes", "strides")
        )
        base = names[fields["base"]]
        if op.memory_space.is_local:
            base = Address(self.scratch[type_.element], base)
        part = Part(base.memory, base.element, strides, (0,) * len(sizes), sizes)
        symbols = [names[item] for item in fields["sizes"] if isinstance(item, str)]
        return View([part], type_.element, op, symbols)

    def _ktdp_construct_distributed_memory_view(self, op, names):
        parts = []
        for name in op.fields["views"]:
            view = names[name]
            points = self.run.module.resolved(view.op.attribute("coordinate_set").value)
            corner = tuple(int(low) for low, _ in points.box(view.symbols))
            part = view.parts[0]
            parts.append(Part(part.memory, part.base, part.strides, corner, part.sizes))
        return View(parts, op.fields["!result"].element, op)

    def _points(self, op, prefix):
        points = self.run.module.resolved(op.attribute(f"{prefix}_set").value)
        box = [(int(low), int(high)) for low, high in points.box(())]
        entry = op.attribute(f"{prefix}_order")
        order = range(len(box)) if entry is None else self.run.module.resolved(entry.value)
        order = getattr(order, "permutation", order)
        return box, tuple(order)

    def _ktdp_construct_access_tile(self, op, names):
        corner = [self._expression(e, names) for e in op.fields["indices"]]
        box, order = self._points(op, "access_tile")

        def point(at):
            own = {d: at[k] for k, d in enumerate(order)}
            return tuple(c + box[d][0] + own[d] for d, c in enumerate(corner))

        shape = tuple(box[d][1] - box[d][0] + 1 for d in order)
        return Points(names[op.fields["view"]], shape, point)

    def _ktdp_construct_indirect_access_tile(self, op, names):
        box, order = self._points(op, "variables_space")
        variables = op.fields["^variables"]

        def point(at):
            own = {variables[v]: box[v][0] + at[k] for k, v in enumerate(order)}
            found = []
            for subscript in op.fields["subscripts"]:
                numbers = [self._expression(e, {**names, **own}) for e in subscript.expressions]
                if subscript.view is not None:
                    part, place = names[subscript.view].position(numbers)
                    numbers = [int(part.memory.values[place])]
                found += numbers
            return tuple(found)

        shape = tuple(box[v][1] - box[v][0] + 1 for v in order)
        return Points(names[op.fields["view"]], shape, point)

    def _expression(self, expression, names):
        values = [names[name] for name in expression.names]
        return int(fold(expression.expr, values, (), INTEGERS))

    def _ktdp_load(self, op, names):
        points = names[op.fields["tile"]]
        values = np.zeros(points.shape, np.int32 if points.view.element == "i32" else SINGLE)
        for at in np.ndindex(points.shape):
            found = points.view.position(points.point(at))
            if found is not None:
                part, place = found
                values[at] = part.memory.values[place]
        return values

    def _ktdp_store(self, op, names):
        points, value = names[op.fields["tile"]], names[op.fields["value"]]
        for at in np.ndindex(points.shape):
            found = points.view.position(points.point(at))
            if found is not None:
                part, place = found
                part.memory.values[place] = value[at]
        return ()

    # --- tiles --------------------------------------------------------------------------------

    def _tensor_empty(self, op, names):
        return None

    def _tensor_splat(self, op, names):
        return np.full(op.fields["!result"].extents, names[op.fields["value"]])

    def _linalg_fill(self, op, names):
        return np.full(op.fields["!outs"][0].extents, names[op.fields["ins"][0]])

    def _linalg_broadcast(self, op, names):
        new = tuple(int(n.value) for n in op.fields["dimensions"])
        wide = np.expand_dims(names[op.fields["ins"][0]], new)
        return np.broadcast_to(wide, op.fields["!outs"][0].extents)

    def _linalg_transpose(self, op, names):
        order = [int(n.value) for n in op.fields["permutation"]]
        return names[op.fields["ins"][0]].transpose(order)

    def _reshaped(self, op, names):
        return names[op.fields["value"]].reshape(op.fields["!result"].extents)

    _tensor_expand_shape = _tensor_collapse_shape = _reshaped

    def _linalg_reduce(self, op, names):
        if op.regions:
            rank = len(op.fields["!ins"][0].extents)
            axes = [int(n.value) for n in op.fields["dimensions"]]
            kept = [d for d in range(rank) if d not in axes]
            orders = [range(rank)] * len(op.fields["ins"]) + [kept] * len(op.fields["outs"])
            places = [lambda at, order=order: tuple(at[d] for d in order) for order in orders]
            return self._iterated(op, names, op.fields["!ins"][0].extents, axes, places)
        axes = tuple(int(n.value) for n in op.fields["dimensions"])
        name = op.fields["combiner"].text.removeprefix("arith.")
        combine, source = BINARY[NAMES[name]], names[op.fields["ins"][0]]
        start = names[op.fields["outs"][0]]
        element = op.fields["!outs"][0].element
        if self.run.chunks and (element, name, len(axes)) == ("f16", "addf", 1):
            found = sum_in_chunks(np.moveaxis(source, axes[0], 0), self.run.chunks)
        else:
            found = combine.reduce(source.astype(np.float64), axes).astype(SINGLE)
        found = self.run.rounded(found, element)
        if start is None or np.all(start == WHOLE[NAMES[name]]):
            return found
        return self.run.rounded(combine(start, found), element)

    def _linalg_matmul(self, op, names):
        left, right = (names[name] for name in op.fields["ins"])
        element = op.fields["!outs"][0].element
        if self.run.chunks and element == "f16":
            pairs = zip(np.moveaxis(left, -1, 0), np.moveaxis(right, -2, 0), strict=True)
            terms = (a[..., None] * b[..., None, :] for a, b in pairs)
            found = sum_in_chunks(terms, self.run.chunks)
        else:
            found = left.astype(np.float64) @ right.astype(np.float64)
        found = self.run.rounded(found, element)
        start = names[op.fields["outs"][0]]
        return found if start is None else self.run.rounded(start + found, element)

    _linalg_batch_matmul = _linalg_matmul

    def _linalg_generic(self, op, names):
        kinds = [k.text for k in op.attribute("iterator_types").value]
        maps = [self.run.module.resolved(m) for m in op.attribute("indexing_maps").value]
        extents = {}
        for map_, type_ in zip(maps, (*op.fields["!ins"], *op.fields["!outs"]), strict=True):
            for result, extent in zip(map_.results, type_.extents, strict=True):
                if hasattr(result, "index"):
                    extents[result.index] = extent
        places = [
            lambda at, map_=map_: tuple(fold(r, at, (), INTEGERS) for r in map_.results)
            for map_ in maps
        ]
        axes = [d for d, kind in enumerate(kinds) if kind == "reduction"]
        return self._iterated(op, names, tuple(extents[d] for d in range(len(kinds))), axes, places)

    def _iterated(self, op, names, shape, axes, places):
        """The body at every point: over all parallel ones at once, the others one after another.
        A body that folds by one operation is summed up exactly and rounded once.
        """
        region, n_inputs = op.regions[0], len(op.fields["ins"])
        types = [*op.fields["!ins"], *op.fields["!outs"]]
        operands = [names[name] for name in (*op.fields["ins"], *op.fields["outs"])]
        totals = [
            np.zeros(t.extents, np.int32 if t.element == "i32" else SINGLE) if value is None
            else np.broadcast_to(value, t.extents).copy()
            for t, value in zip(types[n_inputs:], operands[n_inputs:], strict=True)
        ]  # fmt: skip
        own = [name for name, _ in region.arguments]
        fold_name = self._folds(region, own[n_inputs:]) if axes else None
        kept = [d for d in range(len(shape)) if d not in axes]
        terms = []
        for point in np.ndindex(*(shape[d] for d in axes)):
            at = [None] * len(shape)
            for d, x in zip(axes, point, strict=True):
                at[d] = np.asarray(x)
            grid = np.indices([shape[d] for d in kept])
            for d, x in zip(kept, grid, strict=True):
                at[d] = x
            at = [np.broadcast_to(x, [shape[d] for d in kept]) for x in at]
            self.point = at
            values = [v[p(at)] for v, p in zip(operands[:n_inputs], places, strict=False)]
            before = [t[p(at)] for t, p in zip(totals, places[n_inputs:], strict=True)]
            scope = {**names, **dict(zip(own, [*values, *before], strict=True))}
            body = region.body
            if fold_name is not None:
                combiner, term, rest = fold_name
                (found,) = yield from self.block((*rest, term), scope)
                terms.append(np.broadcast_to(found, before[0].shape))
                continue
            found = yield from self.block(body, scope)
            for total, place, value in zip(totals, places[n_inputs:], found, strict=True):
                total[place(at)] = value
        if fold_name is None:
            return tuple(totals)
        element = types[-1].element
        whole = BINARY[combiner].reduce(np.stack(terms).astype(np.float64), 0).astype(SINGLE)
        whole = self.run.rounded(whole, element)
        start, place = operands[n_inputs], places[n_inputs](at)
        is_whole = start is None or np.all(start == WHOLE[combiner])
        begun = None if is_whole else totals[0][place]
        totals[0][place] = whole if is_whole else self.run.rounded(
            BINARY[combiner](begun, whole), element
        )  # fmt: skip
        return tuple(totals)

    def _folds(self, region, outputs):
        """Combiner, the yield of what it folds, and the operations before; None for others."""
        *body, end = region.body
        if len(outputs) != 1 or not body or end.fields["values"] != body[-1].results:
            return None
        name, uses = NAMES.get(body[-1].name.partition(".")[2]), [*body[-1].uses()]
        if name not in WHOLE or outputs[0] not in uses or len({*uses}) != 2:
            return None
        if any(outputs[0] in op.uses() for op in body[:-1]):
            return None
        other = uses[1 - uses.index(outputs[0])]
        return name, type(end)("linalg.yield", fields={"values": (other,)}), body[:-1]

    def _linalg_index(self, op, names):
        return self.point[int(op.fields["dim"].value)]

    def _at(self, op, names):
        return tuple(self._value(item, names) for item in op.fields["indices"])

    def _tensor_extract(self, op, names):
        return names[op.fields["value"]][self._at(op, names)]

    def _tensor_insert(self, op, names):
        found = names[op.fields["value"]].copy()
        found[self._at(op, names)] = names[op.fields["element"]]
        return found

    def _tensor_from_elements(self, op, names):
        values = [names[name] for name in op.fields["values"]]
        return np.array(values, SINGLE).reshape(op.fields["!result"].extents)

    def _box(self, op, names):
        fields = op.fields
        offsets = [self._value(item, names) for item in fields["offsets"]]
        triples = zip(offsets, fields["sizes"], fields["strides"], strict=True)
        return tuple(slice(o, o + (n - 1) * s + 1, s) for o, n, s in triples)

    def _tensor_extract_slice(self, op, names):
        part = names[op.fields["value"]][self._box(op, names)]
        return part.reshape(op.fields["!result"].extents)

    def _tensor_insert_slice(self, op, names):
        found = names[op.fields["into"]].copy()
        box = self._box(op, names)
        found[box] = names[op.fields["value"]].reshape(found[box].shape)
        return found

    # --- control and deliveries ---------------------------------------------------------------

    def _scf_for(self, op, names):
        fields, region = op.fields, op.regions[0]
        (variable, _), *arguments = region.arguments
        values = tuple(names[name] for name in fields.get("inits", ()))
        for step in range(*(names[fields[key]] for key in ("lower", "upper", "step"))):
            carried = {name: value for (name, _), value in zip(arguments, values, strict=True)}
            values = yield from self.block(region.body, {**names, variable: step, **carried})
        return values

    def _scf_if(self, op, names):
        regions = op.regions if names[op.fields["condition"]] else op.regions[1:]
        for region in regions[:1]:
            return (yield from self.block(region.body, dict(names)))
        return ()

    def _ktdp_inter_tile_produce(self, op, names):
        producers = self.run.module.resolved(op.fields["producers"])
        group = next((g for g in range(32) if self._is_in(producers, g)), None)
        if group is not None:
            region = op.regions[0]
            own = {name: group for name, _ in region.arguments}
            values = yield from self.block(region.body, {**names, **own})
            self.run.delivered[op.results[0], self.number] = group, values
        yield "produced"
        return (op.results[0],)

    def _is_in(self, points, group):
        return bool(points.contains((np.array(self.number),), (group,)[: points.n_symbols]))

    def _ktdp_inter_tile_reduce(self, op, names):
        consumers = self.run.module.resolved(op.fields["consumers"])
        group = next((g for g in range(32) if self._is_in(consumers, g)), None)
        future = op.fields["future"]
        parts = [
            values
            for (name, _), (g, values) in sorted(self.run.delivered.items())
            if name == names[future] and g == group
        ]
        region, totals = op.regions[0], tuple(names[name] for name in op.fields["identity"])
        for values in parts if group is not None else ():
            pairs = zip(region.arguments, (*totals, *values), strict=True)
            totals = yield from self.block(region.body, {**names, **{n: v for (n, _), v in pairs}})
        return totals
