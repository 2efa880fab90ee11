"""Divisions that were asked for: hints and splits committed by other passes, checked."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from numbers import Integral

import sympy

from spyre.errors import LaunchError
from spyre.torch_backend.inductor.division.divisors import divisors
from spyre.torch_backend.inductor.division.iteration import Iteration, IterationDim
from spyre.torch_backend.inductor.division.span import check_one_reduction, shown


def checked_splits(
    iteration: Iteration, asked: Mapping[sympy.Symbol, int], cores: int, source: str
) -> dict[sympy.Symbol, int]:
    """``asked`` as splits of all dims, those not named undivided (§4.1, step 6).

    LaunchError SPY982 unless every value is a positive integer that divides its dim and all of
    them together use at most ``cores``; UnsupportedError SPY981 for several reduced dims.
    ``source`` names who asked.
    """
    dims = {dim.symbol: dim for dim in iteration.dims}
    found = dict.fromkeys(dims, 1)
    for symbol, value in asked.items():
        if symbol not in dims:
            names = ", ".join(map(str, dims))
            raise _refused(source, symbol, f"a dim of {iteration.name}: {names}", str(symbol))
        _check_value(dims[symbol], value, source)
        found[symbol] = int(value)
    if prod(found.values()) > cores:
        used = f"{prod(found.values())} cores: {shown(found)}"
        raise _refused(source, "all dims together", f"at most {cores} cores", used)
    check_one_reduction(iteration, found, f"by {source}")
    return found


def _check_value(dim: IterationDim, value: object, source: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise _refused(source, dim.symbol, "an integer from 1 on", repr(value))
    if dim.units % int(value):
        options = ", ".join(map(str, divisors(dim.units)))
        sticks = f" ({dim.elements} elements in units of {dim.unit})" if dim.unit > 1 else ""
        expected = f"a divisor of {dim.units}{sticks}: {options}"
        raise _refused(source, dim.symbol, expected, str(value))
    if int(value) > 1 and dim.kept_whole:
        raise _refused(source, dim.symbol, f"1, as {dim.kept_whole}", str(value))


def _refused(source: str, what: object, expected: str, found: str) -> LaunchError:
    return LaunchError(
        "SPY982",
        f"{source} cannot divide {what} so",
        expected=expected,
        found=found,
        hint="name dims of the operation with divisors of their sizes, in sticks along sticks",
    )
