"""Which value each int64 of a correction tensor holds: one per parameter of bundle.mlir.

Parameters are known by their names and annotations, as for launches (bundle reference §3.2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from spyre.mlir.loops import Parameter
from spyre.runtime.launch_spec import SymbolKind

ARGUMENT_NAME = re.compile(r"arg_(\d+)_base_addr")
"""Name of the parameter that holds the address of argument K."""
POOL_NAME = "pool_base_addr"
KERNEL, POOL, DIMENSION = "kernel", "pool", "dimension"


def symbol_kinds(parameters: Sequence[Parameter]) -> tuple[SymbolKind, ...]:
    """A kind per parameter, in the order they are declared."""
    return tuple(map(symbol_kind, parameters))


def symbol_kind(parameter: Parameter) -> SymbolKind:
    """``kernel`` (address of argument arg_index), ``pool`` (its address) or ``dimension``.

    A dimension is a runtime size or any other integer that a launch gives by name: pytorch_sym.
    """
    if not parameter.is_size:
        if parameter.name == POOL_NAME:
            return SymbolKind(POOL)
        if (match := ARGUMENT_NAME.fullmatch(parameter.name)) is not None:
            return SymbolKind(KERNEL, arg_index=int(match[1]))
    return SymbolKind(
        DIMENSION,
        granularity=parameter.granularity,
        max_value=parameter.max_value,
        pytorch_sym=parameter.name,
    )
