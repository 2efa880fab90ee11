"""Specs as Python source, in the form the coarse-tiling document prints ("Generated OpSpec").

`eval` of the text makes the specs again, in a namespace with `sympify`, `DataFormats` and the
classes of `op_spec`. Symbols become plain ones, and Inductor's floor divisions and remainders
those of sympy. Pure functions, for any thread.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import sympy

from spyre.torch_backend.inductor.op_spec import LoopSpec, OpSpec, Spec, TensorArg, UnimplementedOp

sympify = functools.cache(sympy.sympify)
"""For generated code, in which few expressions stand many times."""
INDENT = "    "
Lines = Iterator[str]


def spec_text(specs: Sequence[Spec]) -> str:
    """The list of ``specs`` as an expression; keywords that have their default are left out."""
    return "\n".join(_block("[", map(_spec, specs), "]"))


def expression_text(expression: Any) -> str:
    """``sympify('…')`` of an expression or a number."""
    return f"sympify({str(plain(expression))!r})"


def plain(expression: Any) -> sympy.Expr:
    """The expression over symbols without assumptions, with sympy's own floor and Mod."""
    found = sympy.sympify(expression)
    if found.is_Symbol:
        return sympy.Symbol(found.name)
    if not found.args:
        return found
    arguments = [plain(argument) for argument in found.args]
    match type(found).__name__:
        case "FloorDiv" | "CleanDiv":
            return sympy.floor(arguments[0] / arguments[1])
        case "ModularIndexing":
            return sympy.Mod(sympy.floor(arguments[0] / arguments[1]), arguments[2])
        case "PythonMod":
            return sympy.Mod(*arguments)
    return found.func(*arguments)


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


def _spec(spec: Spec) -> Lines:
    match spec:
        case LoopSpec():
            count = _line(f"count={expression_text(spec.count)}")
            return _keywords("LoopSpec", [count, _block("body=[", map(_spec, spec.body), "]")])
        case UnimplementedOp():
            return _line(f"UnimplementedOp(op={spec.op!r})")
        case OpSpec():
            return _op(spec)


def _op(spec: OpSpec) -> Lines:
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
    entries.append(_block("args=[", map(_arg, spec.args), "]"))
    return _keywords("OpSpec", entries)


def _arg(arg: TensorArg) -> Lines:
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
    found = [sympy.sympify(n) for n in numbers]
    texts = (str(n) if n.is_Integer else expression_text(n) for n in found)
    return f"[{', '.join(texts)}]"
