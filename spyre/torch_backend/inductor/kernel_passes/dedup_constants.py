"""`dedup_and_promote_constants`: equal numbers of a kernel are one argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spyre.torch_backend.inductor.kernel_passes.operations import KernelOperations
from spyre.torch_backend.program.op_spec import OpSpec


def dedup_and_promote_constants(kernel: KernelOperations) -> KernelOperations:
    """The operations with every number read from one place; zeros of both signs are two numbers."""
    first: dict[tuple[str, str], int] = {}
    same: dict[int, int] = {}
    for region, memory in enumerate(kernel.low.builder.regions):
        constant = kernel.low.constants.get(memory.argument)
        if constant is not None:
            same[region] = first.setdefault(constant.key, region)
    return replace(kernel, specs=tuple(_reading(spec, same) for spec in kernel.specs))


def _reading(spec: OpSpec, regions: Mapping[int, int]) -> OpSpec:
    inputs = tuple(replace(v, region=regions.get(v.region, v.region)) for v in spec.inputs)
    return spec if inputs == spec.inputs else replace(spec, inputs=inputs)
