"""Syntax tree of KTIR texts: modules, functions, operations with their fields, types, attributes.

One class for all operations: its row of the table (:mod:`.table`) has its fields, and how they are
written. The reader (:mod:`.parser`) makes the tree, the printer writes it back. Names stay
names and aliases stay aliases, so that printing keeps the spelling; comparisons ignore places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import Any

import msgspec

from spyre.errors import SourceLocation
from spyre.mlir.program import AffineExpr
from spyre.mlir.text import NO_POSITION, SourceText, SyntaxNode
from spyre.records import PartlyCompared


class Name(str):
    """A name or word of the text, without its %, and the offset of its first character."""

    __slots__ = ("start_pos",)
    start_pos: int


def named(text: str, position: int = NO_POSITION) -> Name:
    """``text`` as the name at ``position``."""
    name = Name(text)
    name.start_pos = position
    return name


FLOATS = ("f16", "bf16", "f32", "!spyreop.df16")
INTEGERS = ("index", "i1", "i8", "i16", "i32", "i64", "si32")
ELEMENTS = (*FLOATS, *INTEGERS)
BITS = {"f16": 16, "bf16": 16, "f32": 32, "!spyreop.df16": 16, "index": 64, "si32": 32} | {
    f"i{bits}": bits for bits in (1, 8, 16, 32, 64)
}
_SHAPED = re.compile(
    r"(tensor|memref|!ktdp\.access_tile|) ?< ?((?:(?:\d+|\?) ?x ?)*)([!\w.]+) ?(?:, ?(.*))?>"
)
_RUNTIME = re.compile(
    r"(?:!ktdp\.runtime_arg)?< ?([a-z]\w*)((?: ?, ?(?:granularity|upperbound) ?= ?-?\d+)*) ?>"
)
_FUTURE = re.compile(r"(?:!ktdp\.tile_future)? ?<(.*?), ?groups ?= ?(.*)>")
_LARGEST_EXTENT = 2**63


class Type(PartlyCompared, frozen=True):
    """A type: ``kind`` is the name of a scalar type, or ``tensor``, ``memref``, ``access_tile``,
    ``runtime_arg``, ``tile_future`` or ``other``.

    ``shape``: extents, None where the text has ``?``. ``element``: of shaped types and of
    runtime_arg. ``details``: memory space, annotations, or parts and groups of a future.
    ``text``: as written, with single blanks.
    """

    uncompared = frozenset({"text"})

    kind: str
    shape: tuple[int | None, ...] = ()
    element: str = ""
    details: tuple[Any, ...] = ()
    text: str = ""

    @property
    def is_shaped(self) -> bool:
        """True for tensors, memory views and access tiles."""
        return self.kind in ("tensor", "memref", "access_tile")

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape, which is static."""
        assert None not in self.shape
        return tuple(extent or 0 for extent in self.shape)

    @property
    def rank(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def count(self) -> int:
        """Number of elements; 0 where an extent is open."""
        return prod(extent or 0 for extent in self.shape)

    @property
    def scalar(self) -> str:
        """The element type of a tensor, the type itself of a scalar."""
        return self.element if self.is_shaped else self.kind

    def with_element(self, element: str) -> Type:
        """The same shape over another element type."""
        if self.kind != "tensor":
            return read_type(element)
        dims = "".join(f"{'?' if extent is None else extent}x" for extent in self.shape)
        return read_type(f"tensor<{dims}{element}>")

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=4096)
def read_type(text: str) -> Type:
    """The type that ``text`` spells; kind ``other`` if it is none that KTIR knows."""
    shown = " ".join(text.split())
    if shown in ELEMENTS:
        return Type(shown, text=shown)
    if match := _RUNTIME.fullmatch(shown):
        pairs = (part.split("=") for part in match[2].split(",")[1:])
        annotations = tuple((key.strip(), int(value)) for key, value in pairs)
        return Type("runtime_arg", (), match[1], annotations, shown)
    if match := _SHAPED.fullmatch(shown):
        head, dims, element, rest = match.groups()
        extents = tuple(
            None if d == "?" else int(d[:20]) for d in dims.replace(" ", "").split("x")[:-1]
        )
        kind = head.removeprefix("!ktdp.") or "access_tile"
        sound = element in (("index",) if kind == "access_tile" else ELEMENTS)
        if sound and all(extent is None or extent < _LARGEST_EXTENT for extent in extents):
            return Type(kind, extents, element, (rest,) if rest else (), shown)
    if match := _FUTURE.fullmatch(shown):
        inside = match[1].strip()
        parts = re.split(r",\s*(?=tensor|memref|!)", inside.strip("() "))
        return Type("tile_future", (), "", (tuple(map(read_type, parts)), match[2].strip()), shown)
    return Type("other", text=shown)


class Numeral(msgspec.Struct, frozen=True):
    """The text of a number in the source, with its type if the source names one."""

    text: str
    type: Type | None = None

    @property
    def value(self) -> int | float:
        """Its value; hexadecimal digits as an integer."""
        if "x" in self.text:
            return int(self.text, 16)
        return float(self.text) if "." in self.text else int(self.text)

    def __str__(self) -> str:
        return self.text if self.type is None else f"{self.text} : {self.type}"


class Opaque(msgspec.Struct, frozen=True):
    """A value without a meaning here, as canonical text."""

    text: str

    def __str__(self) -> str:
        return self.text


class Quoted(Opaque, frozen=True):
    """A string."""


class Alias(Opaque, frozen=True):
    """``#name``, defined at top level; its text is the name."""

    def __str__(self) -> str:
        return f"#{self.text}"


AttributeValue = Any
"""Alias, Numeral, Opaque, Quoted, Type, AffineMap, AffineSet, None, or a tuple of any of them."""


class AttributeEntry(SyntaxNode, frozen=True):
    """``key = value`` of an attribute dictionary; ``value`` None: the key alone."""

    key: str
    value: AttributeValue = None


class Expression(msgspec.Struct, frozen=True):
    """An affine expression over values: dim k of ``expr`` is the value ``names[k]``."""

    expr: AffineExpr
    names: tuple[Name, ...]

    def __str__(self) -> str:
        return re.sub(r"\bd(\d+)\b", lambda m: f"%{self.names[int(m[1])]}", str(self.expr))


class Subscript(msgspec.Struct, frozen=True):
    """One dim of an indirect access: ``(expression)``, or ``ind(%view[expressions])``."""

    view: Name | None
    expressions: tuple[Expression, ...]

    def __str__(self) -> str:
        inside = ", ".join(map(str, self.expressions))
        return f"({inside})" if self.view is None else f"ind(%{self.view}[{inside}])"


class Region(msgspec.Struct, frozen=True):
    """A block: ``arguments`` with their types, None where the operation implies them.

    ``style``: the form of the arguments: ``label``, ``list``, or by the operation itself.
    """

    arguments: tuple[tuple[Name, Type | None], ...]
    body: tuple[TileOp, ...]
    style: str = "operation"


class TileOp(SyntaxNode, frozen=True):
    """One operation. ``fields``: the names of its row's form, types under ``!name``."""

    uncompared = SyntaxNode.uncompared | {"location"}

    name: str
    results: tuple[Name, ...] = ()
    fields: Mapping[str, Any] = msgspec.field(default_factory=dict)
    attributes: tuple[AttributeEntry, ...] = ()
    regions: tuple[Region, ...] = ()
    location: str | None = None

    def attribute(self, key: str) -> AttributeEntry | None:
        """The attribute ``key``, if it is given."""
        return next((entry for entry in self.attributes if entry.key == key), None)

    @property
    def memory_space(self) -> MemorySpace | None:
        """The memory of a view; None if it is not given, or is none that exists."""
        entry = self.attribute("memory_space")
        return None if entry is None else memory_space(str(entry.value))

    def inside(self) -> Iterator[TileOp]:
        """Every operation of its regions, in textual order."""
        for region in self.regions:
            yield from walk(region.body)

    def uses(self) -> Iterator[Name]:
        """Every value the operation itself uses, in textual order; not those of its regions."""
        for key, value in self.fields.items():
            if key[0] not in "!^":
                yield from names_in(value)

    def all_uses(self) -> list[Name]:
        """Every value that the operation and its regions use."""
        return [name for op in (self, *self.inside()) for name in op.uses()]


def names_in(value: Any) -> Iterator[Name]:
    """Every value that a field names."""
    if isinstance(value, Name):
        yield value
    elif isinstance(value, Expression):
        yield from value.names
    elif isinstance(value, Subscript):
        yield from names_in((value.view, value.expressions))
    elif isinstance(value, tuple):
        for item in value:
            yield from names_in(item)


class TileParameter(SyntaxNode, frozen=True):
    """``%name: type {attributes}``; the name is empty in a declaration."""

    uncompared = SyntaxNode.uncompared | {"location"}

    name: Name
    type: Type
    attributes: tuple[AttributeEntry, ...] = ()
    location: str | None = None


class TileFunction(SyntaxNode, frozen=True):
    """``func.func @name(parameters) -> results attributes {…} { body }``."""

    uncompared = SyntaxNode.uncompared | {"location"}

    name: str
    parameters: tuple[TileParameter, ...]
    results: tuple[Type, ...]
    attributes: tuple[AttributeEntry, ...]
    body: tuple[TileOp, ...]
    visibility: str = ""
    location: str | None = None

    def walk(self) -> Iterator[TileOp]:
        """Every operation in textual order, before those of its regions."""
        return walk(self.body)


def walk(body: tuple[TileOp, ...]) -> Iterator[TileOp]:
    """Every operation of ``body`` in textual order, before those of its regions."""
    for op in body:
        yield op
        yield from op.inside()


class TileModule(SyntaxNode, frozen=True):
    """A whole text. ``wrapped``: ``module`` is written; else functions are at top level.

    ``aliases``: maps, sets and locations by name.
    """

    uncompared = SyntaxNode.uncompared | {"location", "source"}

    functions: tuple[TileFunction, ...] = ()
    aliases: Mapping[str, AttributeValue] = msgspec.field(default_factory=dict)
    wrapped: bool = True
    name: str | None = None
    attributes: tuple[AttributeEntry, ...] = ()
    location: str | None = None
    source: SourceText | None = None

    def locate(self, position: int) -> SourceLocation | None:
        """Place of an offset of the source."""
        return None if self.source is None else self.source.locate(position)

    def resolved(self, value: AttributeValue) -> AttributeValue:
        """Return ``value``, or the value of an alias; None for an alias that is not defined."""
        return self.aliases.get(value.text) if isinstance(value, Alias) else value

    def attribute(self, op: TileOp, key: str) -> AttributeValue:
        """Value of an attribute, aliases resolved; None if it is not given."""
        entry = op.attribute(key)
        return None if entry is None else self.resolved(entry.value)


class MemorySpace(msgspec.Struct, frozen=True):
    """Memory of a view. ``tile``: the tile whose scratchpad it is; None: the running tile's."""

    is_local: bool
    tile: int | None = None


_SPACE = re.compile(
    r"#ktdp\.(?:memory_space<\s*(global|ct_local)\s*(?:,\s*ct_id\s*=\s*(-?\d+)\s*)?>"
    r"|spyre_memory_space<\s*(HBM|LX|L0|unspecified)\s*(?:,\s*core\s*=\s*(-?\d+)\s*)?>)"
)


def memory_space(text: str) -> MemorySpace | None:
    """The memory space that ``text`` spells in either way; None if there is none like it."""
    match = _SPACE.fullmatch(text)
    if match is None:
        return None
    tile = match[2] or match[4]
    is_local = (match[1] or match[3]) in ("ct_local", "LX", "L0")
    return MemorySpace(is_local, None if tile is None else int(tile))
