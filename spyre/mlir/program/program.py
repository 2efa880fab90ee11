"""Programs that can be linked, and the form bundles are lowered to: loops of executes.

A `LinkableProgram` is the interface of programs that can be linked and launched. `LoopProgram` is
the kind of bundles: :mod:`spyre.mlir.text.lowering` creates it from text, the builder from Python.
Its `Schedule` (:mod:`.schedule`) unrolls the loop nests into arrays, level by level and without
Python code per iteration. ``str(program)`` is the golden form that tests compare. Semantics of
scf.for: bundle format reference §3.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from spyre.errors import LaunchError, SourceLocation
from spyre.mlir.program.values import INT64_MAX, Environment, IndexValue
from spyre.records import PartlyCompared

if TYPE_CHECKING:
    from spyre.mlir.program.schedule import Schedule


class Located(PartlyCompared, frozen=True, kw_only=True):
    """Base of the parts: location in bundle.mlir, ignored by comparisons."""

    uncompared = frozenset({"location"})

    location: SourceLocation | None = None


class Parameter(Located, frozen=True):
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


class DeviceAllocation(Located, frozen=True):
    """Device memory held for the whole launch; one per textual occurrence, in textual order."""

    index: int
    size_bytes: int

    def __str__(self) -> str:
        return f"allocation{self.index}: {self.size_bytes} bytes"


class Execute(Located, frozen=True):
    """Run one operation, with the value ``symbols[k]`` for symbol ``symbol_ids[k]``.

    ``index`` counts the executes of the program in textual order. ``sdsc_filename``: name of the
    operation among those of the program; for bundles the SDSC file. ``symbols`` of programs other
    than loop programs may be incomplete: they state the allocation each symbol moves with.
    """

    index: int
    sdsc_filename: str
    symbol_ids: tuple[int, ...] = ()
    symbols: tuple[IndexValue, ...] = ()


class Loop(Located, frozen=True):
    """``for variable = lower; variable < upper; variable += step``; the step is positive."""

    variable: str
    lower: IndexValue
    upper: IndexValue
    step: IndexValue
    body: tuple[Loop | Execute, ...]


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


def _loop_paths(body: Body, path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for item in body:
        if isinstance(item, Execute):
            yield path
        else:
            yield from _loop_paths(item.body, (*path, id(item)))


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
    allocations: Sequence[DeviceAllocation],
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
            message = f"parameter '{parameter.name}' has no value"
            found = ", ".join(values) or "no values"
            raise LaunchError("SPY170", message, parameter.location, expected=expected, found=found)
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
        message = f"parameter '{parameter.name}' contradicts its type"
        expected = f"a positive size with {str(parameter).split(': input_arg ')[-1]}"
        found = str(value)
        raise LaunchError("SPY173", message, parameter.location, expected=expected, found=found)
    return value


def _integer(what: str, given: object, parameter: Parameter | None) -> int:
    location = parameter.location if parameter else None
    try:
        value = operator.index(given)  # type: ignore[arg-type]  # anything may be given
    except TypeError:
        message = f"{what} is not an integer"
        found = repr(given)
        raise LaunchError("SPY172", message, location, expected="an integer", found=found) from None
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise LaunchError(
            "SPY157", f"{what} does not fit in 64 bits", location, found=str(value)[:64]
        )
    return value


class LinkableProgram(Protocol):
    """A program as the linker takes it: executes, and for each launch the order they run in.

    ``executes[k].index == k``; each has a name, a location and, at run time, instances with symbol
    values, from which the start addresses of its operation's tensors follow, core by core.
    ``parameters`` and ``allocations``: inputs of a launch. ``str(program)``: a listing.
    """

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Launch arguments."""

    @property
    def allocations(self) -> tuple[DeviceAllocation, ...]:
        """Device memory held during a launch."""

    @property
    def executes(self) -> tuple[Execute, ...]:
        """The static executes."""

    @property
    def control_values(self) -> tuple[IndexValue, ...]:
        """Values that the order of executes depends on. If one depends on an address, every launch
        at other addresses is linked anew.
        """

    @property
    def loop_paths(self) -> tuple[tuple[int, ...], ...]:
        """Per execute an identity of each surrounding loop, outermost first."""

    def schedule(
        self, parameter_values: Mapping[str, int], allocation_addresses: Sequence[int] = ()
    ) -> Schedule:
        """All dynamic executes with their symbol values, for one launch. LaunchError if invalid."""


class LoopProgram(msgspec.Struct, frozen=True):
    """A bundle's function: parameters, allocations, and loops of executes.

    ``executes`` lists the static executes in textual order; ``executes[k].index == k``.
    """

    parameters: tuple[Parameter, ...]
    allocations: tuple[DeviceAllocation, ...]
    body: Body
    executes: tuple[Execute, ...]

    @property
    def control_values(self) -> tuple[IndexValue, ...]:
        """Lower bound, upper bound and step of every loop."""
        return tuple(
            value for loop in loops(self.body) for value in (loop.lower, loop.upper, loop.step)
        )

    @property
    def loop_paths(self) -> tuple[tuple[int, ...], ...]:
        """Per execute an identity of each surrounding loop, outermost first."""
        return tuple(_loop_paths(self.body, ()))

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
        from spyre.mlir.program.schedule import make_schedule

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
