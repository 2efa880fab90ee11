"""Operations whose results nobody reads: a program makes all its results, some are not wanted."""

from __future__ import annotations

from dataclasses import replace

from spyre.torch_backend.inductor.kernel_passes.operations import KernelOperations


def remove_unread(kernel: KernelOperations) -> KernelOperations:
    """The operations that write an argument, or what a later one of them reads.

    In a loop all of them: what one writes the next iteration may read. Where a tensor among the
    arguments would lose its only operation, everything stays.
    """
    operations, paths, regions = kernel.specs, kernel.paths, kernel.low.builder.regions
    arguments = {k for k, region in enumerate(regions) if region.argument >= 0}
    wanted = set(arguments)
    kept = []
    for number in reversed(range(len(operations))):
        if paths[number] or operations[number].output.region in wanted:
            kept.append(number)
            wanted |= {value.region for value in operations[number].inputs}
    used = {region for k in kept for region in operations[k].regions()}
    unused = {regions[k].argument for k in arguments - used}
    if unused - kernel.low.constants.keys():
        return kernel
    order = kept[::-1]
    specs, paths = tuple(operations[k] for k in order), tuple(paths[k] for k in order)
    return replace(kernel, specs=specs, paths=paths)


def read_constants(kernel: KernelOperations) -> list[int]:
    """Numbers, among the arguments, of the constants that the operations read."""
    used = {region for spec in kernel.specs for region in spec.regions()}
    found = {kernel.low.builder.regions[k].argument for k in used}
    return sorted(found & kernel.low.constants.keys())
