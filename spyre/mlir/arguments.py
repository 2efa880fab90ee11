"""Launch arguments against parameters: the last check before integers go into addresses.

Every parameter needs a value, sizes must respect the granularity and maximum they were compiled
for, allocations need one address each. Rules: bundle format reference §3, SDSC reference §11.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from spyre.errors import LaunchError
from spyre.mlir.loops import Allocation, Parameter
from spyre.mlir.value import INT64_MAX, Environment


def bind_arguments(
    parameters: Sequence[Parameter],
    allocations: Sequence[Allocation],
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
