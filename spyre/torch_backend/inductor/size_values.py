"""Sizes only a launch knows: their symbols in specs, and the same in bundles.

A spec may say ``s0`` in loop counts, device sizes and coordinates where a `SizeSpec` of that name
stands beside it. Pure functions, for any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy

from spyre.errors import LaunchError
from spyre.mlir.affine import AffineExpr, Constant, Symbol
from spyre.mlir.sdsc_builder import RuntimeSize, SizeValue
from spyre.torch_backend.inductor.linear_forms import NotLinear
from spyre.torch_backend.inductor.op_spec import LoopSpec, OpSpec, SizeSpec, Spec, TensorArg
from spyre.torch_backend.inductor.spec_text import plain

Sizes = Mapping[str, int]
"""Elements, by the name of the size."""


def size_value(expression: Any, sizes: Mapping[str, RuntimeSize]) -> int | SizeValue:
    """An expression of sizes as bundles have it. NotLinear for what affine maps lack."""
    found = plain(expression)
    if found.is_Integer:
        return int(found)
    used = tuple(sizes[s] for s in sorted(sizes) if sympy.Symbol(s) in found.free_symbols)
    places = {size.name: Symbol(k) for k, size in enumerate(used)}
    return SizeValue(_affine(found, places), used)


def _affine(e: sympy.Expr, places: Mapping[str, Symbol]) -> AffineExpr:
    if e.is_Integer:
        return Constant(int(e))
    if e.is_Symbol and e.name in places:
        return places[e.name]
    if e.is_Add:
        first, *rest = (_affine(a, places) for a in e.args)
        return sum(rest, first)
    if e.is_Mul and all(a.is_Integer or not a.is_number for a in e.args):
        first, *rest = (_affine(a, places) for a in e.args)
        for factor in rest:
            first = first * factor
        return first
    if isinstance(e, (sympy.floor, sympy.ceiling)):
        upper, lower = sympy.fraction(sympy.together(e.args[0]))
        top, bottom = _affine(upper, places), _affine(lower, places)
        return top // bottom if isinstance(e, sympy.floor) else top.ceildiv(bottom)
    if isinstance(e, sympy.Mod):
        return _affine(e.args[0], places) % _affine(e.args[1], places)
    raise NotLinear(str(e))


def is_sized(expression: Any, iteration: Sequence[str] = ()) -> bool:
    """Whether an expression has symbols beside those of the iteration."""
    found = sympy.sympify(expression).free_symbols
    return any(s.name not in iteration for s in found)


def with_values(specs: Sequence[Spec], sizes: Sizes) -> list[Spec]:
    """``specs`` at given sizes: all numbers are known, loops that never run are left out."""
    values = {sympy.Symbol(name): number for name, number in sizes.items()}
    return list(_specs_with(specs, values))


def _specs_with(specs: Sequence[Spec], values: Mapping[sympy.Symbol, int]) -> list[Spec]:
    found: list[Spec] = []
    for spec in specs:
        if isinstance(spec, LoopSpec):
            count = _at(spec.count, values)
            if count != 0:
                found.append(LoopSpec(count, _specs_with(spec.body, values)))
        elif isinstance(spec, OpSpec):
            found.append(replace(spec, args=[_arg_with(arg, values) for arg in spec.args]))
        else:
            found.append(spec)
    return found


def _arg_with(arg: TensorArg, values: Mapping[sympy.Symbol, int]) -> TensorArg:
    return replace(
        arg,
        device_size=[_at(n, values) for n in arg.device_size],
        device_coordinates=[_at(c, values) for c in arg.device_coordinates],
        within=[_at(n, values) for n in arg.within],
    )


def _at(expression: Any, values: Mapping[sympy.Symbol, int]) -> Any:
    found = plain(expression)
    return found.subs(values) if found.free_symbols else found


def evaluated(numbers: Sequence[Any], sizes: Sizes) -> tuple[int, ...]:
    """Numbers, and expressions of sizes, at given sizes."""
    values = {sympy.Symbol(name): number for name, number in sizes.items()}
    return tuple(n if isinstance(n, int) else int(_at(n, values)) for n in numbers)


def smallest(sizes: Sequence[SizeSpec]) -> dict[str, int]:
    """The least value of every size."""
    return {size.name: size.granularity for size in sizes}


def sizes_of_launch(
    name: str, sizes: Sequence[SizeSpec], given: Sequence[int], shapes: Sequence[Sequence[int]]
) -> dict[str, int]:
    """The sizes of one launch: those of the tensors, or as ``given`` for sizes no tensor has.

    ``given``: all sizes in their order, or none. LaunchError SPY965 where tensors disagree or a
    size is out of its range or said by nobody.
    """
    found = dict(zip((s.name for s in sizes), given, strict=True)) if given else {}
    for size in sizes:
        for argument, dim in size.places:
            value = shapes[argument][dim]
            if found.setdefault(size.name, value) != value:
                raise _wrong(name, size, f"{found[size.name]}, and {value} in argument {argument}")
        if size.name not in found:
            raise _wrong(name, size, "no size behind the tensors")
        value = found[size.name]
        if not 0 < value <= size.maximum or value % size.granularity:
            raise _wrong(name, size, str(value))
    return found


def _wrong(name: str, size: SizeSpec, found: str) -> LaunchError:
    return LaunchError(
        "SPY965",
        f"{name} cannot be launched with this {size.name}",
        expected=f"one multiple of {size.granularity} from {size.granularity} to {size.maximum}",
        found=found,
    )
