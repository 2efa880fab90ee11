"""`OpSpec`, `LoopSpec`: what generated code says of a kernel, in the form the document prints.

A kernel is a list of operations and counted loops. An operation walks an iteration space; every
tensor says, per device dim, which of its coordinates an iteration touches. The text of these
objects is Python that makes them again: it stands in the code Inductor writes and caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import sympy

MATMUL = "batchmatmul"
"""Name of the operation whose reduced dim cores may share."""


class DataFormats(StrEnum):
    """Formats of elements on the card, by the names SDSCs have for them."""

    SEN169_FP16 = "SEN169_FP16"
    IEEE_FP32 = "IEEE_FP32"
    IEEE_INT32 = "IEEE_INT32"
    SENUINT32 = "SENUINT32"
    SENINT8 = "SENINT8"
    SENINT16 = "SENINT16"
    SEN143_FP8 = "SEN143_FP8"
    SEN152_FP8 = "SEN152_FP8"

    def __repr__(self) -> str:
        return f"DataFormats.{self.name}"


@dataclass(frozen=True, slots=True)
class TensorArg:
    """One tensor of an operation.

    ``arg_index``: its place among the kernel's arguments, -1 for LX and the pool. ``device_size``:
    elements per device dim, the stick last. ``device_coordinates``: one expression of the
    iteration's symbols per device dim. ``allocation``: in bytes, ``{"hbm": address}`` of element 0
    (argument k lies in segment k, or k + 1 where there is a pool), ``{"pool": offset}`` or
    ``{"lx": offset}``. ``per_tile_fixed``: loops do not advance it. ``within``: device size of the
    buffer whose tile this is, where that is larger: its pitches count.
    """

    is_input: bool
    arg_index: int
    device_dtype: DataFormats
    device_size: Sequence[int]
    device_coordinates: Sequence[sympy.Expr]
    allocation: Mapping[str, int]
    per_tile_fixed: bool = False
    within: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operation of the card.

    ``op``: opFuncName. ``iteration_space``: symbol → (elements, cores that share them).
    ``tiled_symbols``: one per enclosing loop, the outermost first: the symbol whose extent each
    iteration of that loop moves on by; 0 where the operation does not follow the loop. A loop over
    tiles of one element has a symbol of its own, whose extent is 1. ``op_info``: constants and
    whatever else the SDSC needs.
    """

    op: str
    is_reduction: bool
    iteration_space: Mapping[sympy.Symbol, tuple[sympy.Expr, int]]
    args: Sequence[TensorArg]
    op_info: Mapping[str, Any] = field(default_factory=dict)
    tiled_symbols: Sequence[sympy.Symbol] = ()


@dataclass(frozen=True, slots=True)
class UnimplementedOp:
    """An operation there is no SDSC for; whoever compiles it raises its name."""

    op: str


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """``body``, ``count`` times."""

    count: sympy.Expr
    body: Sequence[OpSpec | UnimplementedOp | LoopSpec]


@dataclass(frozen=True, slots=True)
class SizeSpec:
    """A size that only a launch knows, in elements; specs say its ``name`` as a symbol.

    ``places``: (argument, host dim) of tensors that have it. It is a multiple of ``granularity``
    and at most ``maximum``.
    """

    name: str
    places: Sequence[tuple[int, int]] = ()
    granularity: int = 1
    maximum: int = 2**31 - 1


Spec = OpSpec | UnimplementedOp | LoopSpec
