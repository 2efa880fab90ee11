"""A lowered bundle: parameters, allocations, loops of executes; and its schedule in a launch.

:mod:`spyre.mlir.text.lowering` makes it of text, the builder of descriptions. The runtime asks it
for a :class:`Schedule` per launch, which unrolls the loop nests into arrays, level by level and
without Python code per iteration. ``str(program)`` is the golden form tests compare. Semantics of
scf.for: bundle format reference §3.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from spyre.errors import BundleError, LaunchError, SourceLocation
from spyre.mlir.program.values import INT64_MAX, Environment, IndexValue, relocate, table


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
class LaunchAllocation(Located):
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
    symbols: tuple[IndexValue, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop(Located):
    """``for variable = lower; variable < upper; variable += step``; the step is positive."""

    variable: str
    lower: IndexValue
    upper: IndexValue
    step: IndexValue
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


def bind_arguments(
    parameters: Sequence[Parameter],
    allocations: Sequence[LaunchAllocation],
    parameter_values: Mapping[str, int],
    allocation_addresses: Sequence[int],
) -> Environment:
    """Environment of the launch. Raises LaunchError SPY157 and SPY170-SPY174."""
    _check_names(parameters, parameter_values)
    values = tuple(_argument(p, parameter_values[p.name]) for p in parameters)
    if len(allocation_addresses) != len(allocations):
        raise LaunchError(
            "SPY174",
            "allocations and their addresses differ in number",
            allocations[0].location if allocations else None,
            expected=f"{len(allocations)} addresses, one per device_mem_allocate",
            found=f"{len(allocation_addresses)}",
        )
    addresses = tuple(_integer("an allocation address", a, None) for a in allocation_addresses)
    return Environment(values, addresses)


def _check_names(parameters: Sequence[Parameter], values: Mapping[str, int]) -> None:
    names = [parameter.name for parameter in parameters]
    expected = f"values for {', '.join(names)}" if names else "no values"
    for parameter in parameters:
        if parameter.name not in values:
            raise LaunchError(
                "SPY170",
                f"parameter '{parameter.name}' has no value",
                parameter.location,
                expected=expected,
                found=", ".join(values) or "no values",
            )
    if unknown := sorted(set(values) - set(names)):
        raise LaunchError(
            "SPY171", f"there is no parameter '{unknown[0]}'", expected=expected, found=unknown[0]
        )


def check_sizes(parameters: Sequence[Parameter], values: Mapping[str, int]) -> None:
    """Raise LaunchError SPY172 or SPY173 for a runtime size that its parameter's type excludes."""
    for parameter in parameters:
        if parameter.is_size and parameter.name in values:
            _argument(parameter, values[parameter.name])


def _argument(parameter: Parameter, given: int) -> int:
    value = _integer(f"parameter '{parameter.name}'", given, parameter)
    granularity, maximum = parameter.granularity, parameter.max_value
    if granularity is None and maximum is None:
        return value
    too_big = maximum is not None and value > maximum
    if value <= 0 or too_big or value % (granularity or 1):
        raise LaunchError(
            "SPY173",
            f"parameter '{parameter.name}' contradicts its type",
            parameter.location,
            expected=f"a positive size with {str(parameter).split(': input_arg ')[-1]}",
            found=str(value),
        )
    return value


def _integer(what: str, given: object, parameter: Parameter | None) -> int:
    location = parameter.location if parameter else None
    try:
        value = operator.index(given)  # type: ignore[arg-type]  # anything may be given
    except TypeError:
        raise LaunchError(
            "SPY172", f"{what} is not an integer", location,
            expected="an integer", found=repr(given),
        ) from None  # fmt: skip
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise LaunchError(
            "SPY157", f"{what} does not fit in 64 bits", location, found=str(value)[:64]
        )
    return value


Int64Array = npt.NDArray[np.int64]
MAX_ELEMENTS = 2**27
"""Limit of all int64 entries of one schedule together: 1 GiB."""
_SAFE = 2**61


@dataclass(frozen=True, slots=True)
class Schedule:
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


@dataclass(frozen=True, slots=True)
class _Level:
    """The iterations of the enclosing loops; ``indices`` is int64 ``(n_rows, depth)``."""

    environment: Environment
    n_rows: int
    indices: Int64Array


@dataclass(frozen=True, slots=True)
class _Run:
    """An execute: one instance per row of its level."""

    execute: Execute
    level: _Level


@dataclass(frozen=True, slots=True)
class _Nest:
    """A loop unrolled: ``parent[row of inner]`` is the row of the outer level it belongs to."""

    parent: Int64Array
    inner: tuple[_Run | _Nest, ...]
    counts: Int64Array
    """Dynamic executes per row of the inner level."""


@dataclass(slots=True)
class _Budget:
    """What may still be allocated; raises before the limits are passed."""

    max_executes: int
    executes: int = 0
    elements: int = 0

    def take(self, rows: int, width: int, executes: int, location: SourceLocation | None) -> None:
        """Account for ``rows`` × ``width`` int64 and for dynamic executes."""
        self.executes += executes
        self.elements += rows * (width + 2)
        if max(rows, self.executes) > self.max_executes:
            raise LaunchError(
                "SPY175",
                "too many iterations",
                location,
                expected=f"at most {self.max_executes} executes in one launch",
                found=f"{max(rows, self.executes)}",
            )
        if self.elements > MAX_ELEMENTS:
            raise LaunchError(
                "SPY176",
                "the addresses of this launch need too much memory",
                location,
                expected=f"at most {MAX_ELEMENTS} address values",
                found=f"{self.elements}",
            )


def make_schedule(body: Body, n_executes: int, environment: Environment, limit: int) -> Schedule:
    """Unroll ``body`` for one launch; ``limit`` bounds the number of dynamic executes.

    Raises LaunchError, located: SPY125 (divisor), SPY150 (step), SPY157 (int64), SPY175 and
    SPY176 (too many executes, too much memory).
    """
    level = _Level(environment, 1, np.empty((1, 0), np.int64))
    unrolled = _unroll(body, level, _Budget(limit))
    total = int(_counts(unrolled, 1).sum())
    schedule = Schedule(
        np.empty(total, np.int32),
        np.empty(total, np.int64),
        *_tables(unrolled, n_executes),
    )
    _place(unrolled, np.zeros(1, np.int64), schedule)
    return schedule


def _unroll(body: Body, level: _Level, budget: _Budget) -> tuple[_Run | _Nest, ...]:
    unrolled: list[_Run | _Nest] = []
    for item in body:
        if isinstance(item, Execute):
            budget.take(level.n_rows, len(item.symbols), level.n_rows, item.location)
            unrolled.append(_Run(item, level))
        else:
            unrolled.append(_unroll_loop(item, level, budget))
    return tuple(unrolled)


def _unroll_loop(loop: Loop, level: _Level, budget: _Budget) -> _Nest:
    lower, step, trips = _bounds(loop, level)
    if not loop.has_executes:
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
        raise LaunchError(
            "SPY150",
            f"the step of loop '{loop.variable}' is not positive",
            loop.location,
            expected="a step > 0",
            found=str(step.min()),
        )
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
        if isinstance(item, _Run):
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
        execute, level = run.execute, run.level
        with _located(execute.location):
            symbols[execute.index] = table(execute.symbols, level.environment, level.n_rows)
        indices[execute.index] = level.indices
    return tuple(symbols), tuple(indices)


def _runs(unrolled: tuple[_Run | _Nest, ...]) -> Iterator[_Run]:
    for item in unrolled:
        if isinstance(item, _Run):
            yield item
        else:
            yield from _runs(item.inner)


def _place(unrolled: tuple[_Run | _Nest, ...], start: Int64Array, schedule: Schedule) -> None:
    """Write order and instance; ``start[row]`` is the place in program order where a row begins."""
    for item in unrolled:
        if isinstance(item, _Run):
            schedule.order[start] = item.execute.index
            schedule.instance[start] = np.arange(len(start))
            start = start + 1
        else:
            _place(item.inner, _starts(item, start), schedule)
            start = start + _per_parent(item, len(start))


def _starts(nest: _Nest, start: Int64Array) -> Int64Array:
    """Where each row of the inner level begins: after the earlier rows of the same parent."""
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


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """A bundle's function: parameters, allocations, and loops of executes.

    ``executes`` lists the static executes in textual order; ``executes[k].index == k``.
    """

    parameters: tuple[Parameter, ...]
    allocations: tuple[LaunchAllocation, ...]
    body: Body
    executes: tuple[Execute, ...]

    def schedule(
        self,
        parameter_values: Mapping[str, int],
        allocation_addresses: Sequence[int] = (),
        max_executes: int = 4_000_000,
    ) -> Schedule:
        """All dynamic executes with their symbol values, evaluated in bulk.

        Parameters go by name; addresses are in bytes, one per allocation. Raises LaunchError:
        SPY170-SPY174 (arguments), SPY150 (step), SPY125 (divisor), SPY157 (int64), SPY175
        (more than ``max_executes``), SPY176 (memory).
        """
        environment = bind_arguments(
            self.parameters, self.allocations, parameter_values, allocation_addresses
        )
        return make_schedule(self.body, len(self.executes), environment, max_executes)

    def __str__(self) -> str:
        lines = ["program"]
        lines.extend(f"  {parameter}" for parameter in self.parameters)
        lines.extend(f"  {allocation}" for allocation in self.allocations)
        lines.extend(print_body(self.body))
        return "\n".join(lines) + "\n"
