"""The operations of a kernel with the loops around each, and the passes over them.

The passes run before work is divided: unread results are removed, K of every matmul is padded to
whole sticks (zeros in the lanes beyond K of the left factor, rows of zeros in the right one;
operations reference §4, hardware reference §4), and equal constants become one. Each returns new
`KernelOperations`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from typing import Any

from spyre.torch_backend.inductor.bundles.kernel_op import KernelLoop, KernelOp
from spyre.torch_backend.inductor.tiling.accesses import extents_of
from spyre.torch_backend.inductor.tiling.groups import shares_of
from spyre.torch_backend.program import (
    ConstantArgument,
    DeviceOp,
    Lowering,
    LoweringError,
    OpKind,
    Value,
    is_padded,
    scalar_view,
)

KernelItem = KernelOp | KernelLoop


@dataclass(frozen=True, slots=True)
class LoopPath:
    """The loops around an operation, the outermost first, and hints for dividing it.

    ``numbers``, ``counts``: of the loops; a count is a number or an expression of sizes. ``dims``:
    the dim of the operation that each loop moves along, None where it does not move the operation.
    ``unit_tile_dims``: for a loop over tiles of one element, the index of that dim in the iteration
    space, as the operation's views lack it. ``core_counts``: (dim, cores that are to share it).
    """

    numbers: tuple[int, ...] = ()
    counts: tuple[Any, ...] = ()
    dims: tuple[int | None, ...] = ()
    unit_tile_dims: tuple[int | None, ...] = ()
    core_counts: tuple[tuple[int, int], ...] = ()

    def with_renumbered_dims(self, dims: Mapping[int, int | None]) -> LoopPath:
        """The same loops around an operation with other dim numbers; None for a dim it lacks."""
        renumbered = tuple(None if d is None else dims.get(d, d) for d in self.dims)
        counts = ((dims.get(d, d), cores) for d, cores in self.core_counts)
        core_counts = tuple((d, cores) for d, cores in counts if d is not None)
        return replace(self, dims=renumbered, core_counts=core_counts)

    @property
    def undivided(self) -> LoopPath:
        """The same loops without hints, which do not apply to copies made for the operation."""
        return replace(self, core_counts=()) if self.core_counts else self

    def unit_tiles(self, axis: int) -> int:
        """Number of one-element tiles along an axis of the iteration space; 1 if there are none."""
        return prod(n for a, n in zip(self.unit_tile_dims, self.counts, strict=True) if a == axis)

    def unit_tile_steps(self, axis: int) -> list[tuple[int, int]]:
        """(loop, one-element tiles per iteration) of the loops along an axis, the inner first."""
        steps, step = [], 1
        for loop in reversed(range(len(self.unit_tile_dims))):
            if self.unit_tile_dims[loop] == axis:
                steps.append((loop, step))
                step *= self.counts[loop]
        return steps

    def __bool__(self) -> bool:
        return bool(self.numbers)


NO_LOOPS = LoopPath()


def loop_path(operation: Any) -> LoopPath:
    """The loops that coarse tiling put around an ir.Operation, and its work division hints."""
    numbers, core_counts = tuple(getattr(operation, "loop_group_id", ())), shares_of(operation)
    if not numbers:
        return replace(NO_LOOPS, core_counts=core_counts) if core_counts else NO_LOOPS
    axes = [entry[0] if entry else None for entry in operation.loop_tiled_dims]
    extents = extents_of(operation)
    is_unit = [axis is not None and extents[axis] == 1 for axis in axes]
    dims = tuple(None if unit else a for a, unit in zip(axes, is_unit, strict=True))
    unit_tile_dims = tuple(a if unit else None for a, unit in zip(axes, is_unit, strict=True))
    return LoopPath(numbers, tuple(operation.loop_count), dims, unit_tile_dims, core_counts)


def looped(ops: Sequence[KernelOp], paths: Sequence[LoopPath]) -> tuple[KernelItem, ...]:
    """``ops``, one per path, inside their loops; neighbours with the same number share a loop."""
    return _nested(list(zip(ops, paths, strict=True)), 0)


def _nested(pairs: Sequence[tuple[KernelOp, LoopPath]], depth: int) -> tuple[KernelItem, ...]:
    nested: list[KernelItem] = []
    for key, run in groupby(pairs, lambda pair: pair[1].numbers[depth : depth + 1]):
        members = list(run)
        if key:
            nested.append(KernelLoop(members[0][1].counts[depth], _nested(members, depth + 1)))
        else:
            nested += [op for op, _ in members]
    return tuple(nested)


def first_tile(value: Value, axes: Mapping[int, int], path: LoopPath) -> Value:
    """The first element of ``value`` along dims that loops walk one element at a time.

    ``axes``: by dim, its axis in the iteration space. LoweringError where the steps from tile to
    tile differ, or are smaller than a stick.
    """
    dims, pitches = list(value.view.dims), dict(value.tile_pitches)
    for dim, axis in axes.items():
        if len(dims[dim]) > 1 or any(f.lane for f in dims[dim]):
            raise LoweringError(f"tiles of one element along {dims[dim]}")
        for factor in dims[dim]:
            steps = path.unit_tile_steps(axis)
            pitches |= {loop: step * factor.pitch_bytes for loop, step in steps}
        dims[dim] = ()
    view = replace(value.view, dims=tuple(dims))
    return replace(value, view=view, order=None, tile_pitches=tuple(pitches.items()))


# --- operations and passes ----------------------------------------------------------------------


class KernelLowering(Lowering):
    """A lowering that leaves two steps to passes: K of matmuls is not padded, and every use of a
    number is a constant argument. Belongs to one kernel, so to one thread.
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
    """Operations in their order, and the loops around each. ``builder``: holds their memory."""

    builder: Lowering
    specs: tuple[DeviceOp, ...]
    paths: tuple[LoopPath, ...]

    @property
    def regions(self) -> Sequence[Any]:
        """The memory of the operations, by region number."""
        return self.builder.builder.regions

    @property
    def constants(self) -> Mapping[int, ConstantArgument]:
        """Numbers among the arguments, by argument."""
        return self.builder.constants

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        read = {region for spec in self.specs for region in spec.regions()}
        for region in sorted(read):
            argument = self.regions[region].argument
            if (constant := self.constants.get(argument)) is not None:
                yield f"%{region} = {constant.number}, {constant.dtype}, argument {argument}"
        for spec, path in zip(self.specs, self.paths, strict=True):
            loops = f"    in loops {path.numbers} of {path.counts}" if path else ""
            masked = f", lanes from {spec.mask_from} on as 0" if spec.mask_from else ""
            yield f"{spec}{masked}{loops}"


def remove_unread(kernel: KernelOperations) -> KernelOperations:
    """Remove operations that neither write an argument nor are read by a later operation kept.

    Operations in loops stay, since the next iteration may read their results. If an argument would
    lose its only operation, all operations stay.
    """
    operations, paths, regions = kernel.specs, kernel.paths, kernel.regions
    arguments = {k for k, region in enumerate(regions) if region.argument >= 0}
    wanted = set(arguments)
    kept = []
    for number in reversed(range(len(operations))):
        if paths[number] or operations[number].output.region in wanted:
            kept.append(number)
            wanted |= {value.region for value in operations[number].inputs}
    used = {region for k in kept for region in operations[k].regions()}
    unused = {regions[k].argument for k in arguments - used}
    if unused - kernel.constants.keys():
        return kernel
    order = kept[::-1]
    specs, paths = tuple(operations[k] for k in order), tuple(paths[k] for k in order)
    return replace(kernel, specs=specs, paths=paths)


def read_constants(kernel: KernelOperations) -> list[int]:
    """Argument numbers of the constants that the operations read."""
    used = {region for spec in kernel.specs for region in spec.regions()}
    arguments = {kernel.regions[k].argument for k in used}
    return sorted(arguments & kernel.constants.keys())


def insert_bmm_padding(kernel: KernelOperations) -> KernelOperations:
    """Insert the operations that pad factors before the matmuls that need them.

    A factor that several matmuls of one loop body read is padded once, until it is written.
    """
    specs: list[DeviceOp] = []
    paths: list[LoopPath] = []
    padded: dict[tuple[bool, Value, LoopPath], Value] = {}

    def pad(is_left: bool, value: Value, path: LoopPath, made_for: int) -> Value:
        key = (is_left, value, path)
        if key not in padded:
            program = kernel.builder.builder
            before, program.specs = program.specs, []
            builder = kernel.builder
            padded[key] = (builder.padded_left if is_left else builder.padded_right)(value)
            specs.extend(replace(each, made_for=made_for) for each in program.specs)
            paths.extend([path] * len(program.specs))
            program.specs = before
        return padded[key]

    for spec, path in zip(kernel.specs, kernel.paths, strict=True):
        if spec.kind is OpKind.MATMUL and not is_padded(*spec.inputs):
            rank = len(spec.output.sizes)
            columns, rows = {rank - 1: None, rank: rank - 1}, {rank - 2: None, rank: rank - 2}
            left = pad(True, spec.inputs[0], _along(path, columns), spec.made_for)
            right = pad(False, spec.inputs[1], _along(path, rows), spec.made_for)
            spec = replace(spec, inputs=(left, right))
        specs.append(spec)
        paths.append(path)
        padded = {key: v for key, v in padded.items() if key[1].region != spec.output.region}
    return replace(kernel, specs=tuple(specs), paths=tuple(paths))


def _along(path: LoopPath, dims: Mapping[int, int | None]) -> LoopPath:
    """The loops around operations on a factor, which has other dims than the matmul."""
    return path.undivided.with_renumbered_dims(dims) if path else NO_LOOPS


def dedup_and_promote_constants(kernel: KernelOperations) -> KernelOperations:
    """Read every number from one constant argument; zeros of both signs are two numbers."""
    first: dict[tuple[str, str], int] = {}
    same: dict[int, int] = {}
    for region, memory in enumerate(kernel.regions):
        constant = kernel.constants.get(memory.argument)
        if constant is not None:
            same[region] = first.setdefault(constant.key, region)
    specs = []
    for spec in kernel.specs:
        inputs = tuple(replace(v, region=same.get(v.region, v.region)) for v in spec.inputs)
        specs.append(spec if inputs == spec.inputs else replace(spec, inputs=inputs))
    return replace(kernel, specs=tuple(specs))
