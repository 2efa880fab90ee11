"""All executes of a launch in program order, with their symbol values: a body of loops unrolled.

Whole columns of iterations are computed at a time, as int64 arrays. This is the part of a program
that needs NumPy: reading and checking one does without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.errors import BundleError, LaunchError, SourceLocation
from spyre.mlir.program.program import Body, Execute, Loop, executes
from spyre.mlir.program.values import (
    INT64_MAX,
    Environment,
    IndexValue,
    Terms,
    outside_int64,
    read_terms,
    relocate,
)

Int64Array = npt.NDArray[np.int64]
MAX_ELEMENTS = 2**27
"""Limit of all int64 entries of one schedule together: 1 GiB."""
_SAFE = 2**61


class Schedule(msgspec.Struct, frozen=True):
    """Every dynamic execute of a launch, in program order, with its symbol values.

    ``order[k]`` (int32) is the static execute that runs k-th, ``instance[k]`` (int64) its row in
    ``symbols[order[k]]``, int64 ``(n_instances, n_symbols)``, and in ``loop_indices[order[k]]``,
    int64 ``(n_instances, depth)``: the induction variables, outermost first.
    """

    order: npt.NDArray[np.int32]
    instance: Int64Array
    symbols: tuple[Int64Array, ...]
    loop_indices: tuple[Int64Array, ...]

    def __len__(self) -> int:
        """Number of dynamic executes."""
        return len(self.order)


class _Level(msgspec.Struct, frozen=True):
    """The iterations of the enclosing loops; ``indices`` is int64 ``(n_rows, depth)``."""

    environment: Environment
    n_rows: int
    indices: Int64Array


_Run = tuple[Execute, _Level]
"""An execute: one instance per row of its level."""


class _Nest(msgspec.Struct, frozen=True):
    """A loop unrolled: ``parent[row of inner]`` is the row of the outer level it belongs to."""

    parent: Int64Array
    inner: tuple[_Run | _Nest, ...]
    counts: Int64Array
    """Dynamic executes per row of the inner level."""


class _Budget(msgspec.Struct):
    """Remaining budget of executes and elements; raises before a limit is exceeded."""

    max_executes: int
    executes: int = 0
    elements: int = 0

    def take(self, rows: int, width: int, executes: int, location: SourceLocation | None) -> None:
        """Account for ``rows`` × ``width`` int64 and for dynamic executes."""
        self.executes += executes
        self.elements += rows * (width + 2)
        if max(rows, self.executes) > self.max_executes:
            message = "too many iterations"
            expected = f"at most {self.max_executes} executes in one launch"
            found = f"{max(rows, self.executes)}"
            raise LaunchError("SPY175", message, location, expected=expected, found=found)
        if self.elements > MAX_ELEMENTS:
            message = "the addresses of this launch need too much memory"
            expected = f"at most {MAX_ELEMENTS} address values"
            found = f"{self.elements}"
            raise LaunchError("SPY176", message, location, expected=expected, found=found)


def make_schedule(body: Body, n_executes: int, environment: Environment, limit: int) -> Schedule:
    """Unroll ``body`` for one launch; ``limit`` bounds the number of dynamic executes.

    Raises LaunchError, located: SPY125 (divisor), SPY150 (step), SPY157 (int64), SPY175 and
    SPY176 (too many executes, too much memory).
    """
    level = _Level(environment, 1, np.empty((1, 0), np.int64))
    unrolled = _unroll(body, level, _Budget(limit))
    total = int(_counts(unrolled, 1).sum())
    schedule = Schedule(
        np.empty(total, np.int32), np.empty(total, np.int64), *_tables(unrolled, n_executes)
    )
    _place(unrolled, np.zeros(1, np.int64), schedule)
    return schedule


def _unroll(body: Body, level: _Level, budget: _Budget) -> tuple[_Run | _Nest, ...]:
    unrolled: list[_Run | _Nest] = []
    for item in body:
        if isinstance(item, Execute):
            budget.take(level.n_rows, len(item.symbols), level.n_rows, item.location)
            unrolled.append((item, level))
        else:
            unrolled.append(_unroll_loop(item, level, budget))
    return tuple(unrolled)


def _unroll_loop(loop: Loop, level: _Level, budget: _Budget) -> _Nest:
    lower, step, trips = _bounds(loop, level)
    if next(executes(loop.body), None) is None:
        trips = np.zeros_like(trips)
    n_rows = _exact_sum(trips)
    depth = len(level.environment.columns)
    budget.take(n_rows, 2 * (depth + 1), 0, loop.location)
    trips = trips.astype(np.int64)
    parent = np.repeat(np.arange(level.n_rows), trips)
    iteration = np.arange(n_rows) - (np.cumsum(trips) - trips)[parent]
    column = (lower[parent] + iteration * step[parent]).astype(np.int64)
    inner_level = _descend(level, parent, column)
    inner = _unroll(loop.body, inner_level, budget)
    return _Nest(parent, inner, _counts(inner, n_rows))


def _descend(level: _Level, parent: Int64Array, column: Int64Array) -> _Level:
    """The level inside a loop whose induction variable takes the values ``column``."""
    outer = level.environment
    environment = replace(
        outer,
        columns=(*(c[parent] for c in outer.columns), column),
        magnitudes=(*outer.magnitudes, _magnitude(column)),
    )
    indices = np.concatenate((level.indices[parent], column[:, None]), axis=1)
    return _Level(environment, len(column), indices)


def _bounds(loop: Loop, level: _Level) -> tuple[npt.NDArray[Any], ...]:
    """Lower bound, step and trip count per row; object arrays where int64 could overflow."""
    with _located(loop.location):
        bounds = table((loop.lower, loop.upper, loop.step), level.environment, level.n_rows)
    lower, upper, step = bounds.T
    if level.n_rows and step.min() <= 0:
        message = f"the step of loop '{loop.variable}' is not positive"
        found = str(step.min())
        raise LaunchError("SPY150", message, loop.location, expected="a step > 0", found=found)
    if max(_magnitude(lower), _magnitude(upper), _magnitude(step)) > _SAFE:
        lower, upper, step = (bound.astype(object) for bound in (lower, upper, step))
    return lower, step, np.maximum(-((lower - upper) // step), 0)


def _exact_sum(trips: npt.NDArray[Any]) -> int:
    if len(trips) * _magnitude(trips) <= _SAFE:
        return int(trips.sum())
    return sum(map(int, trips))


def _magnitude(values: npt.NDArray[Any]) -> int:
    return max(-int(values.min()), int(values.max())) if len(values) else 0


def _counts(unrolled: tuple[_Run | _Nest, ...], n_rows: int) -> Int64Array:
    """Dynamic executes per row of a level."""
    counts = np.zeros(n_rows, np.int64)
    for item in unrolled:
        if isinstance(item, tuple):
            counts += 1
        else:
            counts += _per_parent(item, n_rows)
    return counts


def _per_parent(nest: _Nest, n_rows: int) -> Int64Array:
    """Dynamic executes of a nest per row of its outer level."""
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(nest.counts)))
    ends = np.searchsorted(nest.parent, np.arange(n_rows + 1))
    return np.diff(before[ends])


def _tables(
    unrolled: tuple[_Run | _Nest, ...], n_executes: int
) -> tuple[tuple[Int64Array, ...], tuple[Int64Array, ...]]:
    """Symbols and loop indices of every static execute."""
    empty = np.empty((0, 0), np.int64)
    symbols, indices = [empty] * n_executes, [empty] * n_executes
    for run in _runs(unrolled):
        execute, level = run
        with _located(execute.location):
            symbols[execute.index] = table(execute.symbols, level.environment, level.n_rows)
        indices[execute.index] = level.indices
    return tuple(symbols), tuple(indices)


def _runs(unrolled: tuple[_Run | _Nest, ...]) -> Iterator[_Run]:
    for item in unrolled:
        if isinstance(item, tuple):
            yield item
        else:
            yield from _runs(item.inner)


def _place(unrolled: tuple[_Run | _Nest, ...], start: Int64Array, schedule: Schedule) -> None:
    """Write order and instance; ``start[row]`` is the place in program order where a row begins."""
    for item in unrolled:
        if isinstance(item, tuple):
            schedule.order[start] = item[0].index
            schedule.instance[start] = np.arange(len(start))
            start = start + 1
        else:
            _place(item.inner, _starts(item, start), schedule)
            start = start + _per_parent(item, len(start))


def _starts(nest: _Nest, start: Int64Array) -> Int64Array:
    """Return the begin of each row of the inner level, after earlier rows of the same parent."""
    before = np.cumsum(nest.counts) - nest.counts
    first = np.searchsorted(nest.parent, nest.parent)
    starts: Int64Array = start[nest.parent] + before - before[first]
    return starts


@contextmanager
def _located(location: SourceLocation | None) -> Iterator[None]:
    """Give an arithmetic error of a launch its place."""
    try:
        yield
    except BundleError as error:
        raise relocate(error, LaunchError, location) from None


# --- values of many instances ---------------------------------------------------------------


def table(
    values: Sequence[IndexValue], environment: Environment, n_instances: int
) -> npt.NDArray[Any]:
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
    values: Sequence[IndexValue], environment: Environment, out: npt.NDArray[Any]
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


def _row(values: Sequence[IndexValue], environment: Environment) -> list[int]:
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


def _is_safe(values: Sequence[IndexValue], environment: Environment) -> bool:
    """True if int64 columns can evaluate all ``values`` without leaving int64."""
    largest: dict[int, int] = {}
    terms: dict[int, Terms] = {}
    for value in values:
        key = id(value.terms)
        terms[key] = value.terms
        largest[key] = max(largest.get(key, 0), abs(value.constant))
    bounds = (IndexValue(largest[key], terms[key]).magnitude(environment) for key in terms)
    return all(bound <= INT64_MAX for bound in bounds)
