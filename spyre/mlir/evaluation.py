"""Values in bulk: many expressions for many loop iterations as one int64 array.

Where bounds show that int64 cannot overflow, numpy computes; otherwise Python integers do, and
the result is checked. ``schedule`` calls this once per loop and once per execute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.mlir.value import INT64_MAX, Environment, Terms, Value, outside_int64, read_terms


def table(values: Sequence[Value], environment: Environment, n_instances: int) -> npt.NDArray[Any]:
    """All ``values`` for all instances: int64 ``(n_instances, len(values))``.

    BundleError SPY157 if a value leaves int64, SPY125 if a divisor is not positive.
    """
    if not environment.columns:
        return _to_int64([_row(values, environment)])
    if _is_safe(values, environment):
        return _columns(values, environment, np.empty((n_instances, len(values)), np.int64))
    exact = np.empty((n_instances, len(values)), object)
    return _to_int64(_columns(values, environment.exact(), exact))


def _columns(
    values: Sequence[Value], environment: Environment, out: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Fill ``out``; values that share their terms (base plus offsets) are computed together."""
    groups: dict[int, list[int]] = {}
    for index, value in enumerate(values):
        groups.setdefault(id(value.terms), []).append(index)
    constants = np.array([value.constant for value in values], dtype=out.dtype)
    for indices in groups.values():
        base = np.asarray(read_terms(values[indices[0]].terms, environment), dtype=out.dtype)
        out[:, indices] = base.reshape(-1, 1) + constants[indices]
    return out


def _row(values: Sequence[Value], environment: Environment) -> list[int]:
    """All values outside of loops: integers; terms that several share are read once."""
    terms = {id(value.terms): value.terms for value in values}
    bases = {key: read_terms(shared, environment) for key, shared in terms.items()}
    return [bases[id(value.terms)] + value.constant for value in values]


def _to_int64(rows: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Exact integers as int64; BundleError SPY157 names the first that does not fit."""
    try:
        return np.array(rows, dtype=np.int64, ndmin=2)
    except OverflowError:
        outside = (
            value for row in rows for value in row if not -INT64_MAX - 1 <= value <= INT64_MAX
        )
        raise outside_int64(str(next(outside))) from None


def _is_safe(values: Sequence[Value], environment: Environment) -> bool:
    """True if int64 columns can evaluate all ``values`` without leaving int64."""
    largest: dict[int, int] = {}
    terms: dict[int, Terms] = {}
    for value in values:
        key = id(value.terms)
        terms[key] = value.terms
        largest[key] = max(largest.get(key, 0), abs(value.constant))
    bounds = (Value(largest[key], terms[key]).magnitude(environment) for key in terms)
    return all(bound <= INT64_MAX for bound in bounds)
