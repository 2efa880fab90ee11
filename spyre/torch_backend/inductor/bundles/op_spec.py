"""`OpSpec`, `LoopSpec`: what generated code says of a kernel, and its text in the document's form.

A kernel is a list of operations and counted loops. An operation walks an iteration space; every
tensor says, per device dim, which of its coordinates an iteration touches. The text of these
objects (coarse-tiling document, "Generated OpSpec") is Python that makes them again, with
`sympify`,
`DataFormats` and the classes of this module in its namespace: it stands in the code Inductor writes
and caches. Symbols become plain ones, and Inductor's floor divisions and remainders those of sympy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import sympy

from spyre.torch_backend.inductor.bundles.kernel_op import KernelLoop, KernelOp, UnimplementedOp


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
AnySpec = Spec | KernelOp | KernelLoop
"""In the document's form, or that of compiled kernels."""

sympify = functools.cache(sympy.sympify)
"""For generated code, in which few expressions stand many times."""
INDENT = "    "
Lines = Iterator[str]


def operations_of(specs: Sequence[Spec]) -> Iterator[OpSpec]:
    """All operations of ``specs``, those in loops once."""
    for spec in specs:
        if isinstance(spec, LoopSpec):
            yield from operations_of(spec.body)
        elif isinstance(spec, OpSpec):
            yield spec


def spec_text(specs: Sequence[Spec]) -> str:
    """The list of ``specs`` as an expression; keywords that have their default are left out."""
    return "\n".join(_block("[", map(_spec_lines, specs), "]"))


def expression_text(expression: Any) -> str:
    """``sympify('…')`` of an expression or a number."""
    if isinstance(expression, (int, sympy.Integer)):  # as most are; sympy's printer is slow
        return f"sympify({str(int(expression))!r})"
    return f"sympify({str(plain_expression(expression))!r})"


def plain_expression(expression: Any) -> sympy.Expr:
    """The expression over symbols without assumptions, with sympy's own floor and Mod."""
    plain = sympy.sympify(expression)
    if plain.is_Symbol:
        return sympy.Symbol(plain.name)
    if not plain.args:
        return plain
    arguments = [plain_expression(argument) for argument in plain.args]
    match type(plain).__name__:
        case "FloorDiv" | "CleanDiv":
            return sympy.floor(arguments[0] / arguments[1])
        case "ModularIndexing":
            return sympy.Mod(sympy.floor(arguments[0] / arguments[1]), arguments[2])
        case "PythonMod":
            return sympy.Mod(*arguments)
    return plain.func(*arguments)


def _block(head: str, entries: Iterator[Lines], tail: str) -> Lines:
    yield head
    for entry in entries:
        *lines, last = entry
        yield from (f"{INDENT}{line}" for line in lines)
        yield f"{INDENT}{last},"
    yield tail


def _keywords(name: str, entries: Sequence[Lines]) -> Lines:
    return _block(f"{name}(", iter(entries), ")")


def _line(text: str) -> Lines:
    yield text


def _spec_lines(spec: Spec) -> Lines:
    match spec:
        case LoopSpec():
            count = _line(f"count={expression_text(spec.count)}")
            return _keywords(
                "LoopSpec", [count, _block("body=[", map(_spec_lines, spec.body), "]")]
            )
        case UnimplementedOp():
            return _line(f"UnimplementedOp(op={spec.op!r})")
        case OpSpec():
            return _op_lines(spec)


def _op_lines(spec: OpSpec) -> Lines:
    space = (
        _line(f"{expression_text(symbol)}: ({expression_text(extent)}, {cores})")
        for symbol, (extent, cores) in spec.iteration_space.items()
    )
    entries = [
        _line(f"op={spec.op!r}"),
        _line(f"is_reduction={bool(spec.is_reduction)}"),
        _block("iteration_space={", space, "}"),
        _line(f"op_info={dict(spec.op_info)!r}"),
    ]
    if spec.tiled_symbols:
        entries.append(_line(f"tiled_symbols={_expressions(spec.tiled_symbols)}"))
    entries.append(_block("args=[", map(_arg_lines, spec.args), "]"))
    return _keywords("OpSpec", entries)


def _arg_lines(arg: TensorArg) -> Lines:
    coordinates = (_line(expression_text(e)) for e in arg.device_coordinates)
    entries = [
        _line(f"is_input={bool(arg.is_input)}, arg_index={arg.arg_index}"),
        _line(f"device_dtype={arg.device_dtype!r}"),
        _line(f"device_size={_numbers(arg.device_size)}"),
        _block("device_coordinates=[", coordinates, "]"),
        _line(f"allocation={_allocation(arg)}"),
    ]
    if arg.per_tile_fixed:
        entries.append(_line("per_tile_fixed=True"))
    if arg.within:
        entries.append(_line(f"within={_numbers(arg.within)}"))
    return _keywords("TensorArg", entries)


def _allocation(arg: TensorArg) -> str:
    return repr({kind: int(number) for kind, number in arg.allocation.items()})


def _expressions(expressions: Sequence[Any]) -> str:
    return f"[{', '.join(map(expression_text, expressions))}]"


def _numbers(numbers: Sequence[Any]) -> str:
    plain = [sympy.sympify(n) for n in numbers]
    texts = (str(n) if n.is_Integer else expression_text(n) for n in plain)
    return f"[{', '.join(texts)}]"
