"""Passes over the operations of a kernel, before they are specs: unread results, padding,
constants.

Each takes the `KernelOperations` it finds and returns them changed. K of every matmul is padded to
whole sticks: the left factor gets zeros in the lanes beyond K, the right one rows of zeros
(operations reference §4; hardware reference §4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from spyre.torch_backend.inductor.kernel.operands import NO_LOOPS, LoopPath
from spyre.torch_backend.program import (
    ConstantArgument,
    DeviceOp,
    Lowering,
    OpKind,
    Value,
    is_padded,
    scalar_view,
)


class KernelLowering(Lowering):
    """A lowering that leaves to passes what eager mode does at once: K of matmuls is not padded,
    and every use of a number is a constant of its own. Belongs to one kernel, so to one thread.
    """

    def left_factor(self, left: Value, rank: int) -> Value:
        """``left[.., M, K]`` of ``rank`` dims with K along the lanes."""
        return self.unpadded_left(left, rank)

    def right_factor(self, right: Value, rank: int) -> Value:
        """``right[.., K, N]`` of ``rank`` dims with N along the lanes."""
        return self.unpadded_right(right, rank)

    def _constant(self, number: float, dtype: str) -> Value:
        self.constants[self.builder.arguments] = ConstantArgument(float(number), dtype)
        return self.builder.argument(scalar_view(dtype), dtype, True)


@dataclass(frozen=True, slots=True)
class KernelOperations:
    """Operations in their order, and the loops around each. ``low``: has their memory."""

    low: Lowering
    specs: tuple[DeviceOp, ...]
    paths: tuple[LoopPath, ...]

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        read = {region for spec in self.specs for region in spec.regions()}
        for region in sorted(read):
            argument = self.low.builder.regions[region].argument
            if (constant := self.low.constants.get(argument)) is not None:
                yield f"%{region} = {constant.number}, {constant.dtype}, argument {argument}"
        for spec, path in zip(self.specs, self.paths, strict=True):
            loops = f"    in loops {path.numbers} of {path.counts}" if path else ""
            masked = f", lanes from {spec.mask_from} on as 0" if spec.mask_from else ""
            yield f"{spec}{masked}{loops}"


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
    arguments = {kernel.low.builder.regions[k].argument for k in used}
    return sorted(arguments & kernel.low.constants.keys())


def insert_bmm_padding(kernel: KernelOperations) -> KernelOperations:
    """The operations with those that pad factors before the matmuls that need them.

    A factor that several matmuls of the same loop body share is padded once.
    """
    padding = _Padding(kernel.low)
    for spec, path in zip(kernel.specs, kernel.paths, strict=True):
        padding.take(spec, path)
    return replace(kernel, specs=tuple(padding.specs), paths=tuple(padding.paths))


class _Padding:
    """``made``: padded factors by the factor and its loops, as long as neither is written to."""

    def __init__(self, low: Lowering) -> None:
        self._low = low
        self._made: dict[tuple[bool, Value, LoopPath], Value] = {}
        self.specs: list[DeviceOp] = []
        self.paths: list[LoopPath] = []

    def take(self, spec: DeviceOp, path: LoopPath) -> None:
        """The next operation, behind what it needs."""
        if spec.kind is OpKind.MATMUL and not is_padded(*spec.inputs):
            rank = len(spec.output.sizes)
            left, right = spec.inputs
            columns, rows = {rank - 1: None, rank: rank - 1}, {rank - 2: None, rank: rank - 2}
            number = spec.made_for
            left = self._padded(True, left, _along(path, columns), number)
            right = self._padded(False, right, _along(path, rows), number)
            spec = replace(spec, inputs=(left, right))
        self.specs.append(spec)
        self.paths.append(path)
        written = spec.output.region
        self._made = {key: v for key, v in self._made.items() if key[1].region != written}

    def _padded(self, is_left: bool, value: Value, path: LoopPath, number: int) -> Value:
        """``number``: of the operation it is for."""
        key = (is_left, value, path)
        if key not in self._made:
            builder = self._low.builder
            before, builder.specs = builder.specs, []
            pad = self._low.padded_left if is_left else self._low.padded_right
            self._made[key] = pad(value)
            self.specs += [replace(each, made_for=number) for each in builder.specs]
            self.paths += [path] * len(builder.specs)
            builder.specs = before
        return self._made[key]


def _along(path: LoopPath, dims: Mapping[int, int | None]) -> LoopPath:
    """The loops as the operations on a factor see them, which has other dims than the matmul."""
    return path.undivided.seen_as(dims) if path else NO_LOOPS


def dedup_and_promote_constants(kernel: KernelOperations) -> KernelOperations:
    """The operations with every number read from one place; zeros of both signs are two numbers."""
    first: dict[tuple[str, str], int] = {}
    same: dict[int, int] = {}
    for region, memory in enumerate(kernel.low.builder.regions):
        constant = kernel.low.constants.get(memory.argument)
        if constant is not None:
            same[region] = first.setdefault(constant.key, region)
    return replace(kernel, specs=tuple(_reading(spec, same) for spec in kernel.specs))


def _reading(spec: DeviceOp, regions: Mapping[int, int]) -> DeviceOp:
    inputs = tuple(replace(v, region=regions.get(v.region, v.region)) for v in spec.inputs)
    return spec if inputs == spec.inputs else replace(spec, inputs=inputs)
