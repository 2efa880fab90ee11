"""Random KTIR programs with their arguments: accesses of every form, and operations on the tiles.

Numbers are multiples of 1/4 below 4, so that sums and products are exact in float32 and the order
of additions does not matter. Tiles load and store disjoint rows.
"""

from __future__ import annotations

import random

import msgspec
import numpy as np

SPACE = "memory_space = #ktdp.memory_space<global>"


class Value(msgspec.Struct):
    name: str
    shape: tuple[int, ...]
    element: str = "f16"

    @property
    def type(self) -> str:
        return tensor(self.shape, self.element)


def tensor(shape, element, kind="tensor"):
    return f"{kind}<{''.join(f'{n}x' for n in shape)}{element}>"


def box(shape, lows=None):
    names = [f"d{k}" for k in range(len(shape))]
    lows = lows or [0] * len(shape)
    bounds = ", ".join(
        f"{d} - {low} >= 0, -{d} + {low + n - 1} >= 0"
        for d, n, low in zip(names, shape, lows, strict=True)
    )
    return f"affine_set<({', '.join(names)}) : ({bounds})>"


class RandomProgram(msgspec.Struct, dict=True):
    """``text`` and ``given``, made from a seed."""

    seed: int
    lines: list[str] = msgspec.field(default_factory=list)
    given: dict = msgspec.field(default_factory=dict)
    parameters: list[str] = msgspec.field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.numbers = np.random.default_rng(self.seed)
        rng = self.rng
        self.tiles = rng.choice([1, 2, 3, 4, 8])
        self.rows = rng.choice([1, 2, 3, 5, 16, 64])
        self.columns = rng.choice([1, 7, 40, 64, 100, 128] if self.rows < 64 else [40, 64])
        self.element = rng.choice(["f16", "f16", "f16", "f32"])
        self.lines += ["%id = ktdp.get_compute_tile_id : index"]
        for number in (0, 1, self.rows):
            self.lines.append(f"%c{number} = arith.constant {number} : index")
        self.lines = list(dict.fromkeys(self.lines))
        self.lines.append(f"%top = arith.muli %id, %c{self.rows} : index")
        values = [self.load() for _ in range(rng.choice([1, 2, 2]))]
        for _ in range(rng.choice([1, 2, 3, 5])):
            values.append(self.operation(values))
        self.store(values[-1])
        self.lines.append("return")
        body = "\n  ".join(self.lines)
        parameters = ", ".join(f"%{name}: index" for name in self.parameters)
        self.text = (
            f"func.func @f({parameters}) attributes {{grid = [{self.tiles}]}} {{\n  {body}\n}}\n"
        )

    # --- names, memory

    def new(self, prefix="v"):
        self.count += 1
        return f"%{prefix}{self.count}"

    def emit(self, text, shape=(), element=None):
        name = self.new()
        self.lines.append(f"{name} = {text}")
        return Value(name, tuple(shape), element or self.element)

    def constant(self, number):
        """An index."""
        return self.emit(f"arith.constant {number} : index").name

    def memory(self, count, element=None, values=None):
        """A pointer with random numbers."""
        element = element or self.element
        name = f"p{len(self.parameters)}"
        self.parameters.append(name)
        if values is None:
            values = self.numbers.integers(-15, 16, count) / 4
        dtype = {"f16": np.float16, "f32": np.float32, "i32": np.int32}[element]
        self.given[name] = np.asarray(values, dtype)
        return f"%{name}"

    def view(self, pointer, sizes, strides, element=None, clipped=False, corner=None):
        element = element or self.element
        shape = ["?" if clipped else n for n in sizes]
        own = [self.constant(n) if clipped else n for n in sizes]
        points = "" if clipped else f"coordinate_set = {box(sizes, corner)}, "
        type_ = tensor(shape, element, "memref")
        name = self.emit(
            f"ktdp.construct_memory_view {pointer}, sizes: [{', '.join(map(str, own))}], "
            f"strides: [{', '.join(map(str, strides))}] {{{points}{SPACE}}} : {type_}"
        ).name
        return name, type_

    def tile(self, view, type_, indices, shape, order=(0, 1)):
        """An access tile; ``shape``: of the view's dims."""
        own = tuple(shape[d] for d in order)
        names = ", ".join(f"d{k}" for k in range(len(shape)))
        chosen = ", ".join(f"d{d}" for d in order)
        access = tensor(own, "index", "!ktdp.access_tile")
        name = self.emit(
            f"ktdp.construct_access_tile {view}[{', '.join(indices)}] {{access_tile_set = "
            f"{box(shape)}, access_tile_order = affine_map<({names}) -> ({chosen})>}} "
            f": {type_} -> {access}"
        ).name
        return name, access

    # --- accesses of all forms; each tile has its rows

    def access(self, shape):
        """An access tile of memory that no other tile touches, and its type."""
        r, c = shape
        total = self.tiles * r
        form = self.rng.choice(["plain", "strided", "columns", "clipped", "parts", "indirect"])
        if form == "plain":
            view = self.view(self.memory(total * c), (total, c), (c, 1))
            return self.tile(*view, (f"{self.top(r)}", "%c0"), shape)
        if form == "strided":
            row, step = self.rng.choice([(2 * c + 3, 2), (c + 5, 1), (3 * c, 3)])
            view = self.view(self.memory(total * row + 3 * c), (total, c), (row, step))
            return self.tile(*view, (self.top(r), "%c0"), shape)
        if form == "columns":
            view = self.view(self.memory(total * c), (c, total), (total, 1))
            return self.tile(*view, ("%c0", self.top(r)), (c, r), (1, 0))
        if form == "clipped":
            short = self.rng.randint(1, max(c, 1)), self.rng.randint(1, total)
            pointer = self.memory(short[0] * short[1])
            view = self.view(pointer, (short[1], short[0]), (short[0], 1), clipped=True)
            return self.tile(*view, (self.top(r), "%c0"), shape)
        if form == "parts" and c > 1:
            return self.parts(shape, total)
        return self.indirect(shape, total)

    def top(self, rows):
        factor = self.constant(rows)
        return self.emit(f"arith.muli %id, {factor} : index").name

    def parts(self, shape, total):
        """Two parts side by side, the second one column-major."""
        r, c = shape
        left = self.rng.randint(1, c - 1)
        first = self.view(self.memory(total * left), (total, left), (left, 1))
        second = self.view(
            self.memory(total * (c - left)), (total, c - left), (1, total), corner=(0, left)
        )
        type_ = tensor((total, c), self.element, "memref")
        whole = self.emit(
            f"ktdp.construct_distributed_memory_view ({first[0]}, {second[0]} : {first[1]}, "
            f"{second[1]}) : {type_}"
        ).name
        return self.tile(whole, type_, (self.top(r), "%c0"), shape)

    def indirect(self, shape, total):
        """Rows by an index, all different."""
        r, c = shape
        indices = self.memory(total, "i32", self.numbers.permutation(total))
        looked = self.view(indices, (total,), (1,), "i32")
        view = self.view(self.memory(total * c), (total, c), (c, 1))
        access = tensor(shape, "index", "!ktdp.access_tile")
        top = self.top(r)
        column = self.rng.choice(["(%j)", "(%j mod 1024)", "((%j + 0) floordiv 1)"])
        name = self.emit(
            f"ktdp.construct_indirect_access_tile intermediate_variables(%i, %j) {view[0]}"
            f"[ind({looked[0]}[{top} + %i]), {column}] {{variables_space_set = {box(shape)}, "
            "variables_space_order = affine_map<(d0, d1) -> (d0, d1)>} : "
            f"{view[1]}, {looked[1]} -> {access}"
        ).name
        return name, access

    def load(self):
        shape = (self.rows, self.columns)
        name, access = self.access(shape)
        return self.emit(f"ktdp.load {name} : {access} -> {tensor(shape, self.element)}", shape)

    def store(self, value):
        name, access = self.access(value.shape)
        self.lines.append(f"ktdp.store {value.name}, {name} : {value.type}, {access}")

    # --- operations

    def operation(self, values):
        forms = [
            self.binary, self.binary, self.unary, self.choose, self.wide, self.sums, self.turned,
            self.sliced, self.inserted, self.single, self.listed, self.reshaped, self.product,
            self.repeated, self.branched, self.rested, self.numbered, self.contracted, self.folded,
            self.counted, self.integers, self.mapped, self.masked,
        ]  # fmt: skip
        return self.rng.choice(forms)(values)

    def pair(self, values):
        a = self.rng.choice(values)
        fitting = [v for v in values if v.shape == a.shape]
        return a, self.rng.choice(fitting)

    def binary(self, values):
        a, b = self.pair(values)
        name = self.rng.choice(["addf", "subf", "mulf", "maximumf", "minimumf"])
        return self.emit(f"arith.{name} {a.name}, {b.name} : {a.type}", a.shape)

    def unary(self, values):
        a = self.rng.choice(values)
        name = self.rng.choice(["arith.negf", "math.absf", "math.floor"])
        return self.emit(f"{name} {a.name} : {a.type}", a.shape)

    def choose(self, values):
        a, b = self.pair(values)
        sign = self.rng.choice(["olt", "oge", "oeq", "one", "ugt", "ule", "ueq", "ord"])
        mask = self.emit(f"arith.cmpf {sign}, {a.name}, {b.name} : {a.type}")
        bits = tensor(a.shape, "i1")
        return self.emit(
            f"arith.select {mask.name}, {b.name}, {a.name} : {bits}, {a.type}", a.shape
        )

    def wide(self, values):
        a = self.rng.choice(values)
        if self.element == "f32":
            return self.unary(values)
        type_ = tensor(a.shape, "f32")
        wide = self.emit(f"arith.extf {a.name} : {a.type} to {type_}")
        twice = self.emit(f"arith.addf {wide.name}, {wide.name} : {type_}")
        return self.emit(f"arith.truncf {twice.name} : {type_} to {a.type}", a.shape)

    def sums(self, values):
        """A reduction of one dim, broadcast back."""
        a, dim = self.rng.choice(values), self.rng.choice([0, 1])
        name = self.rng.choice(["addf", "maximumf", "minimumf"])
        short = (a.shape[1 - dim],)
        start = self.emit(f"tensor.empty() : {tensor(short, self.element)}")
        total = self.emit(
            f"linalg.reduce {{ arith.{name} }} ins({a.name} : {a.type}) outs({start.name} : "
            f"{tensor(short, self.element)}) dimensions = [{dim}]",
            short,
        )
        if self.rng.random() < 0.5:
            self.store_row(self.emit(f"arith.negf {total.name} : {total.type}", short))
        return self.spread(total.name, total.type, a, dim)

    def store_row(self, value):
        """Each tile's row of numbers, one behind another."""
        (n,) = value.shape
        view = self.view(self.memory(self.tiles * n), (self.tiles * n,), (1,))
        name, access = self.tile(*view, (self.top(n),), value.shape, (0,))
        self.lines.append(f"ktdp.store {value.name}, {name} : {value.type}, {access}")

    def spread(self, name, type_, a, dim):
        """A row or column over the other dim of tiles like ``a``."""
        empty = self.emit(f"tensor.empty() : {a.type}")
        return self.emit(
            f"linalg.broadcast ins({name} : {type_}) outs({empty.name} : {a.type}) "
            f"dimensions = [{dim}]",
            a.shape,
        )

    def turned(self, values):
        """A transpose, and another one back after an operation."""
        a = self.rng.choice(values)
        for _ in range(2):
            other = a.shape[::-1]
            empty = self.emit(f"tensor.empty() : {tensor(other, self.element)}")
            a = self.emit(
                f"linalg.transpose ins({a.name} : {a.type}) outs({empty.name} : "
                f"{tensor(other, self.element)}) permutation = [1, 0]",
                other,
            )
            a = self.binary([a])
        return a

    def sliced(self, values):
        a = self.rng.choice(values)
        sizes = tuple(self.rng.randint(1, n) for n in a.shape)
        return self.slice_of(a, sizes)

    def slice_of(self, a, sizes):
        offsets = [self.rng.randint(0, n - s) for n, s in zip(a.shape, sizes, strict=True)]
        return self.emit(
            f"tensor.extract_slice {a.name}{offsets} {list(sizes)} [1, 1] : {a.type} to "
            f"{tensor(sizes, self.element)}",
            sizes,
        )

    def inserted(self, values):
        a = self.rng.choice(values)
        b = self.sliced([a])
        offsets = [self.rng.randint(0, n - s) for n, s in zip(a.shape, b.shape, strict=True)]
        return self.emit(
            f"tensor.insert_slice {b.name} into {a.name}{offsets} {list(b.shape)} [1, 1] : "
            f"{b.type} into {a.type}",
            a.shape,
        )

    def single(self, values):
        """One element, at another place or at all."""
        a = self.rng.choice(values)
        places = [
            ", ".join(self.constant(self.rng.randrange(n)) for n in a.shape) for _ in range(2)
        ]
        one = self.emit(f"tensor.extract {a.name}[{places[0]}] : {a.type}")
        if self.rng.random() < 0.5:
            return self.emit(f"tensor.splat {one.name} : {a.type}", a.shape)
        return self.emit(f"tensor.insert {one.name} into {a.name}[{places[1]}] : {a.type}", a.shape)

    def listed(self, values):
        """A tile of two elements."""
        a = self.rng.choice(values)
        zeros = ", ".join("%c0" for _ in a.shape)
        one = self.emit(f"tensor.extract {a.name}[{zeros}] : {a.type}")
        two = self.emit(f"arith.constant 2.5 : {self.element}")
        shape = (1, 2)
        type_ = tensor(shape, self.element)
        return self.emit(f"tensor.from_elements {one.name}, {two.name} : {type_}", shape)

    def reshaped(self, values):
        """All elements in a row, and in other rows."""
        a = self.rng.choice(values)
        count = a.shape[0] * a.shape[1]
        row = self.emit(
            f"tensor.collapse_shape {a.name} [[0, 1]] : {a.type} into "
            f"{tensor((count,), self.element)}",
            (count,),
        )
        r = self.rng.choice([n for n in range(1, count + 1) if count % n == 0])
        shape = (r, count // r)
        return self.emit(
            f"tensor.expand_shape {row.name} [[0, 1]] output_shape {list(shape)} : {row.type} "
            f"into {tensor(shape, self.element)}",
            shape,
        )

    def product(self, values):
        """Of a loaded tile (small numbers) with its transpose."""
        a, other = values[0], values[0].shape[::-1]
        empty = self.emit(f"tensor.empty() : {tensor(other, self.element)}")
        b = self.emit(
            f"linalg.transpose ins({a.name} : {a.type}) outs({empty.name} : "
            f"{tensor(other, self.element)}) permutation = [1, 0]",
            other,
        )
        shape = (a.shape[0], a.shape[0])
        element = self.rng.choice([self.element, "f32"])
        type_ = tensor(shape, element)
        start = self.emit(f"tensor.empty() : {type_}")
        found = self.emit(
            f"linalg.matmul ins({a.name}, {b.name} : {a.type}, {b.type}) outs({start.name} : "
            f"{type_}) -> {type_}",
            shape,
            element,
        )
        if element == self.element:
            return found
        narrow = tensor(shape, self.element)
        return self.emit(f"arith.truncf {found.name} : {type_} to {narrow}", shape)

    def repeated(self, values):
        """A loop that carries a tile; its trips differ between tiles."""
        a, b = self.pair(values)
        name = self.rng.choice(["addf", "subf", "maximumf"])
        total, inner, bound = self.new("s"), self.new("w"), self.constant(self.rng.randint(0, 3))
        trips = self.emit(f"arith.addi %id, {bound} : index").name
        result = self.new()
        self.lines += [
            f"{result} = scf.for %i{self.count} = %c0 to {trips} step %c1 "
            f"iter_args({total} = {a.name}) -> ({a.type}) {{",
            f"  {inner} = arith.{name} {total}, {b.name} : {a.type}",
            f"  scf.yield {inner} : {a.type}",
            "}",
        ]
        return Value(result, a.shape, self.element)

    def branched(self, values):
        a, b = self.pair(values)
        bound = self.constant(self.rng.randint(0, 3))
        condition = self.emit(f"arith.cmpi slt, %id, {bound} : index").name
        result, yes = self.new(), self.new()
        self.lines += [
            f"{result} = scf.if {condition} -> ({a.type}) {{",
            f"  {yes} = arith.addf {a.name}, {b.name} : {a.type}",
            f"  scf.yield {yes} : {a.type}",
            "} else {",
            f"  scf.yield {b.name} : {a.type}",
            "}",
        ]
        return Value(result, a.shape, self.element)

    def generic(self, maps, kinds, ins, shape, body, element=None):
        """linalg.generic of one output, from a tensor.empty."""
        element = element or self.element
        empty = self.emit(f"tensor.empty() : {tensor(shape, element)}")
        all_maps = ", ".join(f"affine_map<{m}>" for m in maps)
        iterators = ", ".join(f'"{kind}"' for kind in kinds)
        arguments = ", ".join(
            f"%a{self.count}_{k}: {e}" for k, e in enumerate([*(v.element for v in ins), element])
        )
        names = [f"%a{self.count}_{k}" for k in range(len(ins) + 1)]
        lines = body(*names)
        return self.emit(
            f"linalg.generic {{indexing_maps = [{all_maps}], iterator_types = [{iterators}]}} "
            f"ins({', '.join(v.name for v in ins)} : {', '.join(v.type for v in ins)}) "
            f"outs({empty.name} : {tensor(shape, element)}) {{\n  ^bb0({arguments}):\n    "
            + "\n    ".join(lines) + f"\n  }} -> {tensor(shape, element)}", shape, element,
        )  # fmt: skip

    def rested(self, values):
        """Columns cut into two parts, which become rows, and back, by linear maps."""
        a = self.rng.choice(values)
        r, c = a.shape
        if c % 2:
            return self.unary(values)
        cut, plain = f"(d0, d1, d2) -> (d1, d0 * {c // 2} + d2)", "(d0, d1, d2) -> (d0, d1, d2)"
        kinds, copy = ["parallel"] * 3, lambda x, _: [f"linalg.yield {x} : {self.element}"]
        parts = self.generic([cut, plain], kinds, [a], (2, r, c // 2), copy)
        return self.generic([plain, cut], kinds, [parts], a.shape, copy)

    def numbered(self, values):
        """A choice by the numbers of row and column."""
        a = self.rng.choice(values)
        same, sign = "(d0, d1) -> (d0, d1)", self.rng.choice(["sge", "ne", "ult"])
        n = self.new("n")

        def body(x, _):
            return [
                f"{n}i = linalg.index 0 : index", f"{n}j = linalg.index 1 : index",
                f"{n}k = arith.addi {n}i, %id : index",
                f"{n}c = arith.cmpi {sign}, {n}k, {n}j : index",
                f"{n}x = arith.negf {x} : {self.element}",
                f"{n}r = arith.select {n}c, {x}, {n}x : {self.element}",
                f"linalg.yield {n}r : {self.element}",
            ]  # fmt: skip

        return self.generic([same, same], ["parallel"] * 2, [a], a.shape, body)

    def contracted(self, values):
        """Products summed over columns or rows, broadcast back."""
        a, b = self.pair(values)
        dim, n = self.rng.choice([0, 1]), self.new("n")
        kinds = ["reduction" if d == dim else "parallel" for d in (0, 1)]

        def body(x, y, total):
            return [
                f"{n}p = arith.addf {x}, {y} : {self.element}",
                f"{n}q = arith.maximumf {n}p, {total} : {self.element}",
                f"linalg.yield {n}q : {self.element}",
            ]

        same = "(d0, d1) -> (d0, d1)"
        short = self.generic(
            [same, same, f"(d0, d1) -> (d{1 - dim})"], kinds, [a, b], (a.shape[1 - dim],), body
        )
        return self.spread(short.name, short.type, a, dim)

    def folded(self, values):
        """A reduction of two inputs by another body, its second result broadcast back."""
        a, b = self.pair(values)
        dim, n, element = self.rng.choice([0, 1]), self.new("n"), self.element
        short, wide = tensor((a.shape[1 - dim],), element), a.type
        zero = self.emit(f"arith.constant 0.5 : {element}")
        empty = self.emit(f"tensor.empty() : {short}")
        start = self.emit(
            f"linalg.fill ins({zero.name} : {element}) outs({empty.name} : {short}) -> {short}"
        )
        self.lines += [
            f"{n}, {n}s = linalg.reduce ins({a.name}, {b.name} : {wide}, {wide}) outs("
            f"{start.name}, {start.name} : {short}, {short}) dimensions = [{dim}]",
            f"  ({n}a: {element}, {n}b: {element}, {n}x: {element}, {n}y: {element}) {{",
            f"    {n}c = arith.cmpf ogt, {n}a, {n}x : {element}",
            f"    {n}u = arith.select {n}c, {n}a, {n}x : {element}",
            f"    {n}v = arith.select {n}c, {n}b, {n}y : {element}",
            f"    linalg.yield {n}u, {n}v : {element}, {element}",
            "  }",
        ]
        return self.spread(f"{n}s", short, a, dim)

    def counted(self, values):
        """A loop that carries a number and a tile."""
        a, n, element = self.rng.choice(values), self.new("n"), self.element
        bound = self.constant(self.rng.randint(0, 3))
        one = self.emit(f"arith.constant 0.25 : {element}")
        self.lines += [
            f"{n}, {n}t = scf.for {n}i = %c0 to {bound} step %c1 iter_args({n}s = {one.name}, "
            f"{n}a = {a.name}) -> ({element}, {a.type}) {{",
            f"  {n}u = arith.addf {n}s, {n}s : {element}",
            f"  {n}w = tensor.splat {n}u : {a.type}",
            f"  {n}b = arith.addf {n}a, {n}w : {a.type}",
            f"  scf.yield {n}u, {n}b : {element}, {a.type}",
            "}",
        ]
        wide = self.emit(f"tensor.splat {n} : {a.type}")
        return self.emit(f"arith.addf {n}t, {wide.name} : {a.type}", a.shape)

    def mapped(self, values):
        """linalg.map, by a name or by a body."""
        (a, b), n = self.pair(values), self.new("n")
        empty = self.emit(f"tensor.empty() : {a.type}")
        form = self.rng.choice(["arith.subf", "arith.mulf", ""])
        body = "" if form else (
            f"\n  ({n}a: {a.element}, {n}b: {a.element}) {{\n    {n}c = arith.cmpf ult, {n}a, {n}b "
            f": {a.element}\n    {n}d = arith.select {n}c, {n}b, {n}a : {a.element}\n"
            f"    linalg.yield {n}d : {a.element}\n  }}"
        )  # fmt: skip
        return self.emit(
            f"linalg.map {f'{{ {form} }} ' if form else ''}ins({a.name}, {b.name} : {a.type}, "
            f"{b.type}) outs({empty.name} : {a.type}){body}", a.shape,
        )  # fmt: skip

    def masked(self, values):
        """A mask of two comparisons, joined."""
        a, b = self.pair(values)
        bits = tensor(a.shape, "i1")
        masks = [
            self.emit(f"arith.cmpf {sign}, {a.name}, {b.name} : {a.type}").name
            for sign in ("uge", self.rng.choice(["une", "olt"]))
        ]
        name = self.rng.choice(["andi", "ori", "xori"])
        joined = self.emit(f"arith.{name} {masks[0]}, {masks[1]} : {bits}").name
        return self.emit(f"arith.select {joined}, {a.name}, {b.name} : {bits}, {a.type}", a.shape)

    def integers(self, values):
        """Loaded integers, compared with a table and chosen, as numbers."""
        a = self.rng.choice(values)
        r, c = a.shape
        total = self.tiles * r
        pointer = self.memory(total * c, "i32", self.numbers.integers(-(2**31), 2**31, total * c))
        name, access = self.tile(
            *self.view(pointer, (total, c), (c, 1), "i32"), (self.top(r), "%c0"), a.shape
        )
        whole = tensor(a.shape, "i32")
        loaded = self.emit(f"ktdp.load {name} : {access} -> {whole}")
        table = self.emit(f"arith.constant dense<{self.rng.randint(-9, 9)}> : {whole}")
        kind = self.rng.choice(["minsi", "maxsi", "addi", "muli"])
        mixed = self.emit(f"arith.{kind} {loaded.name}, {table.name} : {whole}")
        sign = self.rng.choice(["slt", "ne", "sge"])
        mask = self.emit(f"arith.cmpi {sign}, {mixed.name}, {loaded.name} : {whole}")
        other = self.emit(f"arith.negf {a.name} : {a.type}")
        return self.emit(
            f"arith.select {mask.name}, {a.name}, {other.name} : {tensor(a.shape, 'i1')}, {a.type}",
            a.shape,
        )
