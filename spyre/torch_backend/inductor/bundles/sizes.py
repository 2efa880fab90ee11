"""Sizes that only a launch knows: `SizeSpec`, and numbers of kernels that depend on them.

Loop counts, strides and extents of a kernel may be sympy expressions of the names of its sizes. In
a bundle they are affine maps (`size_value`); at a launch they are evaluated. Pure functions, for
any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from spyre.errors import LaunchError, UnsupportedError
from spyre.mlir.builder import RuntimeSize, SizeValue
from spyre.mlir.program import AffineConstant, AffineExpr, AffineSymbol
from spyre.torch_backend.inductor.bundles.op_spec_form import plain_expression


@dataclass(frozen=True, slots=True)
class SizeSpec:
    """A size in elements that only a launch knows; expressions contain its ``name`` as a symbol.

    ``places``: (argument, host dim) of the tensor dims of this size. It is a multiple of
    ``granularity`` and at most ``maximum``.
    """

    name: str
    places: Sequence[tuple[int, int]] = ()
    granularity: int = 1
    maximum: int = 2**31 - 1


Sizes = Mapping[str, int]
"""Elements, by the name of the size."""


def size_value(number: Any, sizes: Mapping[str, RuntimeSize], role: str) -> int | SizeValue:
    """``number`` for a bundle: an int, or an affine map of ``sizes``.

    ``role``: of the number, for messages. UnsupportedError SPY964 for other symbols, and for
    functions that affine maps lack.
    """
    if isinstance(number, int):
        return number
    plain = plain_expression(number)
    if plain.is_Integer:
        return int(plain)
    names = {symbol.name for symbol in plain.free_symbols}
    if not names or not names <= set(sizes):
        raise unknown_number(role, plain)
    used = tuple(sizes[name] for name in sorted(names))
    symbols = {size.name: AffineSymbol(k) for k, size in enumerate(used)}
    try:
        return SizeValue(_affine(plain, symbols), used)
    except ValueError as error:
        raise unknown_number(role, plain) from error


def _affine(e: sympy.Expr, symbols: Mapping[str, AffineSymbol]) -> AffineExpr:
    if e.is_Integer:
        return AffineConstant(int(e))
    if e.is_Symbol and e.name in symbols:
        return symbols[e.name]
    if e.is_Add:
        first, *rest = (_affine(a, symbols) for a in e.args)
        return sum(rest, first)
    if e.is_Mul and all(a.is_Integer or not a.is_number for a in e.args):
        first, *rest = (_affine(a, symbols) for a in e.args)
        for factor in rest:
            first = first * factor
        return first
    if isinstance(e, (sympy.floor, sympy.ceiling)):
        upper, lower = sympy.fraction(sympy.together(e.args[0]))
        top, bottom = _affine(upper, symbols), _affine(lower, symbols)
        return top // bottom if isinstance(e, sympy.floor) else top.ceildiv(bottom)
    if isinstance(e, sympy.Mod):
        return _affine(e.args[0], symbols) % _affine(e.args[1], symbols)
    raise ValueError(str(e))


def value_at(number: Any, sizes: Sizes) -> Any:
    """The value of a number or an expression of sizes; an expression if some sizes are missing."""
    if isinstance(number, int):
        return number
    plain = plain_expression(number)
    if plain.free_symbols:
        plain = plain.subs({sympy.Symbol(name): value for name, value in sizes.items()})
    return int(plain) if plain.is_Integer else plain


def evaluated(numbers: Sequence[Any], sizes: Sizes) -> tuple[int, ...]:
    """The values of numbers and expressions of sizes."""
    return tuple(int(value_at(n, sizes)) for n in numbers)


def smallest(sizes: Sequence[SizeSpec]) -> dict[str, int]:
    """The least value of every size."""
    return {size.name: size.granularity for size in sizes}


def sizes_of_launch(
    name: str, sizes: Sequence[SizeSpec], given: Sequence[int], shapes: Sequence[Sequence[int]]
) -> dict[str, int]:
    """The sizes of one launch, by name, from the shapes of its tensors and from ``given``.

    ``given``: all sizes in their order, or none. LaunchError SPY965 if tensors disagree, or if a
    size is out of range or missing.
    """
    values = dict(zip((s.name for s in sizes), given, strict=True)) if given else {}
    for size in sizes:
        for argument, dim in size.places:
            value = shapes[argument][dim]
            if values.setdefault(size.name, value) != value:
                raise _wrong_size(
                    name, size, f"{values[size.name]}, and {value} in argument {argument}"
                )
        if size.name not in values:
            raise _wrong_size(name, size, "no size behind the tensors")
        value = values[size.name]
        if not 0 < value <= size.maximum or value % size.granularity:
            raise _wrong_size(name, size, str(value))
    return values


def _wrong_size(name: str, size: SizeSpec, found: str) -> LaunchError:
    return LaunchError(
        "SPY965",
        f"{name} cannot be launched with this {size.name}",
        expected=f"one multiple of {size.granularity} from {size.granularity} to {size.maximum}",
        found=found,
    )


def integer(number: Any, role: str) -> int:
    """``number`` as a positive int. UnsupportedError SPY964 for an expression of symbols."""
    if isinstance(number, int) and number > 0:
        return number
    value = sympy.sympify(number)
    if not (value.is_Integer and value > 0):
        raise unknown_number(role, value)
    return int(value)


def unknown_number(role: str, value: Any) -> UnsupportedError:
    """SPY964 about a number that no launch gives."""
    return UnsupportedError(
        "SPY964",
        "a loop count or an extent depends on something that no launch says",
        expected="positive integers; in loop counts and buffers, sizes of the kernel too",
        found=f"{role} of {value}",
    )
