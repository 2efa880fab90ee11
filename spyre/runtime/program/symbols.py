"""What the parameters of bundle.mlir stand for: addresses, runtime sizes, indices.

Parameters are known by their names and annotations (bundle reference §3.2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from spyre.errors import LaunchError
from spyre.mlir.program.program import Parameter
from spyre.runtime.program.launch_spec import SymbolKind

ARGUMENT_NAME = re.compile(r"arg_(\d+)_base_addr")
"""Name of the parameter that holds the address of argument K."""
POOL_NAME = "pool_base_addr"
KERNEL_SYMBOL, POOL_SYMBOL, DIMENSION_SYMBOL = "kernel", "pool", "dimension"


def symbol_kinds(parameters: Sequence[Parameter]) -> tuple[SymbolKind, ...]:
    """A kind per parameter, in the order they are declared."""
    return tuple(map(symbol_kind, parameters))


def symbol_kind(parameter: Parameter) -> SymbolKind:
    """``kernel`` (address of argument arg_index), ``pool`` (its address) or ``dimension``.

    A dimension is a runtime size or any other integer that a launch gives by name: pytorch_sym.
    """
    if not parameter.is_size:
        if parameter.name == POOL_NAME:
            return SymbolKind(POOL_SYMBOL)
        if (match := ARGUMENT_NAME.fullmatch(parameter.name)) is not None:
            return SymbolKind(KERNEL_SYMBOL, arg_index=int(match[1]))
    return SymbolKind(
        DIMENSION_SYMBOL,
        granularity=parameter.granularity,
        max_value=parameter.max_value,
        pytorch_sym=parameter.name,
    )


POOL = -1


def argument_index(name: str) -> int | None:
    """K of a parameter called ``arg_K_base_addr``; None for any other."""
    match = ARGUMENT_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def require_no_size(parameter: Parameter, values: Mapping[str, int]) -> None:
    """LaunchError SPY366 for a runtime size, which has to be among ``values`` by name."""
    if not parameter.is_size:
        return
    steps = parameter.granularity or 1
    most = "" if parameter.max_value is None else f" up to {parameter.max_value}"
    raise LaunchError(
        "SPY366",
        f"runtime size {parameter.name} has no value",
        parameter.location,
        expected=f"a value for {parameter.name}: a positive multiple of {steps}{most}",
        found=", ".join(values) or "no values",
    )
