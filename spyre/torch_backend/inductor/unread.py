"""Operations whose results nobody reads: a program makes all its results, some are not wanted."""

from __future__ import annotations

from collections.abc import Sequence

from spyre.torch_backend.program.builder import Region
from spyre.torch_backend.program.op_spec import OpSpec


def read_operations(operations: Sequence[OpSpec], regions: Sequence[Region]) -> list[int]:
    """Numbers of the operations that write an argument, or what a later one of them reads."""
    wanted = {k for k, region in enumerate(regions) if region.argument >= 0}
    found = []
    for number in reversed(range(len(operations))):
        operation = operations[number]
        if operation.output.region in wanted:
            found.append(number)
            wanted |= {value.region for value in operation.inputs}
    return found[::-1]
