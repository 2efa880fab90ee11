"""What the parameters of bundle.mlir stand for: addresses, runtime sizes, indices.

Parameters are known by their names and annotations (bundle reference §3.2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from spyre.errors import LaunchError
from spyre.mlir.program import Parameter
from spyre.runtime.program.launch_spec import SymbolKind

_ARGUMENT_NAME = re.compile(r"arg_(\d+)_base_addr")
"""Name of the parameter that holds the address of argument K."""
_POOL_NAME = "pool_base_addr"
POOL = -1
"""The pool, where argument indices name memory."""


def symbol_kinds(parameters: Sequence[Parameter]) -> tuple[SymbolKind, ...]:
    """A kind per parameter, in the order they are declared."""
    return tuple(map(symbol_kind, parameters))


def symbol_kind(parameter: Parameter) -> SymbolKind:
    """``kernel`` (address of argument arg_index), ``pool`` (its address) or ``dimension``.

    A dimension is a runtime size or any other integer that a launch gives by name: pytorch_sym.
    """
    owner = None if parameter.is_size else owner_of(parameter.name)
    if owner is not None:
        return SymbolKind("pool") if owner == POOL else SymbolKind("kernel", arg_index=owner)
    return SymbolKind(
        "dimension",
        granularity=parameter.granularity,
        max_value=parameter.max_value,
        pytorch_sym=parameter.name,
    )


def owner_of(name: str) -> int | None:
    """What the address in parameter ``name`` is of: argument index, POOL; None for a value."""
    if name == _POOL_NAME:
        return POOL
    match = _ARGUMENT_NAME.fullmatch(name)
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
