"""The parts of a lowered program: parameters, allocations, loops and executes, integers only.

``program.lower`` makes them, ``schedule`` runs through them, the runtime reads them. Symbols and
bounds are :class:`~spyre.mlir.value.Value` expressions; there are no SSA names any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from spyre.errors import SourceLocation
from spyre.mlir.value import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Base of the parts: where one stands in bundle.mlir, outside comparisons."""

    location: SourceLocation | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Parameter(Located):
    """One launch argument. ``name`` is without %; granularity and max_value may be unknown.

    An ``input_arg`` without annotations is a device address in bytes, with them a dimension size
    in elements; an ``index`` is any integer.
    """

    name: str
    kind: Literal["input_arg", "index"]
    granularity: int | None = None
    max_value: int | None = None

    @property
    def is_size(self) -> bool:
        """True for a dimension size: an annotated ``input_arg``."""
        return self.granularity is not None or self.max_value is not None

    def __str__(self) -> str:
        granularity = f" granularity={self.granularity}" if self.granularity is not None else ""
        maximum = f" max_value={self.max_value}" if self.max_value is not None else ""
        return f"{self.name}: {self.kind}{granularity}{maximum}"


@dataclass(frozen=True, slots=True)
class Allocation(Located):
    """Device memory held for the whole launch; one per textual occurrence, in textual order."""

    index: int
    size_bytes: int

    def __str__(self) -> str:
        return f"allocation{self.index}: {self.size_bytes} bytes"


@dataclass(frozen=True, slots=True)
class Execute(Located):
    """Run one SDSC: symbol ``symbol_ids[k]`` has the value ``symbols[k]``.

    ``index`` counts the executes of the program in textual order.
    """

    index: int
    sdsc_filename: str
    symbol_ids: tuple[int, ...] = ()
    symbols: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop(Located):
    """``for variable = lower; variable < upper; variable += step``; the step is positive."""

    variable: str
    lower: Value
    upper: Value
    step: Value
    body: tuple[Loop | Execute, ...]

    @property
    def has_executes(self) -> bool:
        """True if there is an execute at any depth."""
        return any(True for _ in executes(self.body))


Body = tuple[Loop | Execute, ...]


def executes(body: Body) -> Iterator[Execute]:
    """Every execute in textual order."""
    for item in body:
        if isinstance(item, Execute):
            yield item
        else:
            yield from executes(item.body)


def loops(body: Body) -> Iterator[Loop]:
    """Every loop, an outer one before its inner ones."""
    for item in body:
        if isinstance(item, Loop):
            yield item
            yield from loops(item.body)


def print_body(body: Body, indent: str = "") -> Iterator[str]:
    """Lines of readable text, two blanks of indentation per loop."""
    for item in body:
        if isinstance(item, Loop):
            bounds = f"{item.lower} to {item.upper} step {item.step}"
            yield f"{indent}for {item.variable} = {bounds}"
            yield from print_body(item.body, indent + "  ")
        else:
            yield f"{indent}execute {item.index} {item.sdsc_filename}"
            symbols = zip(item.symbol_ids, item.symbols, strict=True)
            yield from (f"{indent}  {id_} = {value}" for id_, value in symbols)
