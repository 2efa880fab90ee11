"""Operations whose results nobody reads: a program makes all its results, some are not wanted."""

from __future__ import annotations

from collections.abc import Sequence

from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.inductor.loop_paths import LoopPath
from spyre.torch_backend.program.op_spec import OpSpec


def read_operations(
    low: Lowering, paths: Sequence[LoopPath]
) -> tuple[list[OpSpec], list[LoopPath]]:
    """The operations of ``low`` that write an argument, or what a later one of them reads, and
    their ``paths``.

    In a loop all of them: what one writes the next iteration may read. Where a tensor among the
    arguments would lose its only operation, everything stays.
    """
    operations, regions = low.builder.specs, low.builder.regions
    arguments = {k for k, region in enumerate(regions) if region.argument >= 0}
    wanted = set(arguments)
    kept = []
    for number in reversed(range(len(operations))):
        if paths[number] or operations[number].output.region in wanted:
            kept.append(number)
            wanted |= {value.region for value in operations[number].inputs}
    used = {region for k in kept for region in operations[k].regions()}
    unused = {regions[k].argument for k in arguments - used}
    if unused - low.constants.keys():
        return operations, list(paths)
    return [operations[k] for k in reversed(kept)], [paths[k] for k in reversed(kept)]


def read_constants(low: Lowering) -> list[int]:
    """Numbers, among the arguments, of the constants that operations of ``low`` read."""
    used = {region for spec in low.builder.specs for region in spec.regions()}
    found = {low.builder.regions[k].argument for k in used}
    return sorted(found & low.constants.keys())
