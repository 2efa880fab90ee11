"""The operations of a kernel with the loops around each, and all passes over them.

Before work is divided, unread results are removed, K of every matmul is padded to whole sticks
(zeros in the lanes beyond K of the left factor, rows of zeros in the right one; operations
reference §4, hardware reference §4), equal constants become one, and operations that repeat an
earlier one are removed; each of these passes returns new `KernelOperations`. Then the operations
become `KernelOp`s, whose work is divided and whose memory in LX and in the pool is planned. The
coarse-tiling document runs these passes on ir.Operations before scheduling; here layouts and memory
are known.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import prod
from typing import Any

import msgspec
from msgspec.structs import replace

from spyre.dtypes import find_stored_format
from spyre.errors import LaunchError
from spyre.hw.cost import default_machine, machine_with
from spyre.mlir.builder import POOL
from spyre.torch_backend.inductor.base.layouts import HostBuffer
from spyre.torch_backend.inductor.base.notes import (
    DIVISIONS_FILE,
    LX_FILE,
    Notes,
    PassPrinter,
    logger,
    wants_notes,
)
from spyre.torch_backend.inductor.base.settings import Settings, settings
from spyre.torch_backend.inductor.bundles.generation import KernelMemory
from spyre.torch_backend.inductor.bundles.kernel_op import (
    HBM,
    LX,
    Kernel,
    KernelLoop,
    KernelOp,
    KernelTensor,
    kernel_text,
    roles_of,
)
from spyre.torch_backend.inductor.bundles.op_spec_form import spec_text, to_op_specs
from spyre.torch_backend.inductor.division import (
    DIVISION_PASSES,
    WorkDivision,
    divide_op,
    divisions_text,
    with_division,
)
from spyre.torch_backend.inductor.lx_division import LX_DIVISION, divide_for_lx
from spyre.torch_backend.inductor.scratchpad import (
    plan_scratchpad,
    pool_offsets,
    report_text,
    with_offsets,
)
from spyre.torch_backend.inductor.tiling.accesses import extents_of
from spyre.torch_backend.inductor.tiling.groups import shares_of
from spyre.torch_backend.program import (
    ConstantArgument,
    DeviceOp,
    Ints,
    IterationDim,
    Lowering,
    LoweringError,
    OpKind,
    Value,
    is_padded,
    iterated,
    scalar_view,
)

KernelItem = KernelOp | KernelLoop


class LoopPath(msgspec.Struct, frozen=True):
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


def looped(
    ops: Sequence[KernelOp], paths: Sequence[LoopPath], depth: int = 0
) -> tuple[KernelItem, ...]:
    """``ops``, one per path, inside their loops from ``depth`` on; neighbours with the same number
    share a loop.
    """
    nested: list[KernelItem] = []
    pairs = zip(ops, paths, strict=True)
    for key, run in groupby(pairs, lambda pair: pair[1].numbers[depth : depth + 1]):
        members, around = zip(*run, strict=True)
        body = looped(members, around, depth + 1) if key else members
        nested += [KernelLoop(around[0].counts[depth], body)] if key else body
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

    def constant(self, number: float, dtype: str) -> Value:
        """A number, as a value of rank 0 in another launch argument."""
        self.constants[self.builder.arguments] = ConstantArgument(float(number), dtype)
        return self.builder.argument(scalar_view(dtype), dtype, True)


class KernelOperations(msgspec.Struct, frozen=True):
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
    return replace(kernel, specs=tuple(_reading(spec, same) for spec in kernel.specs))


def _reading(spec: DeviceOp, renamed: Mapping[int, int]) -> DeviceOp:
    """The operation with inputs in other regions."""
    inputs = tuple(replace(v, region=renamed.get(v.region, v.region)) for v in spec.inputs)
    return spec if inputs == spec.inputs else replace(spec, inputs=inputs)


def share_equal_results(kernel: KernelOperations) -> KernelOperations:
    """Remove operations that repeat an earlier one; their readers read the earlier result.

    All operations of loops stay, and those whose result is an argument, is read in a loop, or is
    written more than once.
    """
    regions, pairs = kernel.regions, [*zip(kernel.specs, kernel.paths, strict=True)]
    writes = Counter(spec.output.region for spec in kernel.specs)
    looped = {region for spec, path in pairs if path for region in spec.regions()}
    # arguments may share memory: a write to one changes all
    memory = [-1 if region.argument >= 0 else k for k, region in enumerate(regions)]
    first: dict[tuple[object, ...], int] = {}
    same: dict[int, int] = {}
    kept, versions = [], Counter[int]()
    for spec, path in pairs:
        region = spec.output.region
        read = _reading(spec, same)
        if not path and writes[region] == 1 and memory[region] >= 0 and region not in looped:
            read_versions = tuple(versions[memory[k]] for k in read.regions())
            key = (_computation(read), regions[region], read_versions)
            same[region] = first.setdefault(key, region)
        versions[memory[region]] += 1
        if same.get(region, region) == region:
            kept.append((read, path))
    specs, paths = zip(*kept, strict=True) if kept else ((), ())
    return replace(kernel, specs=specs, paths=paths)


def _computation(spec: DeviceOp) -> tuple[object, ...]:
    """A key that is equal for operations that differ only in the region of their result."""
    output, constants = replace(spec.output, region=-1), tuple(sorted(spec.constants.items()))
    function = (spec.kind, spec.name, spec.dims, constants)
    return (*function, spec.mask_from, spec.lane_multiple, spec.part, spec.inputs, output)


# --- all passes of one kernel ---------------------------------------------------------------------

OPERATION_PASSES = (
    remove_unread,
    insert_bmm_padding,
    dedup_and_promote_constants,
    share_equal_results,
)
"""Passes before the operations of a bundle become `KernelOp`s."""


def _division(op: KernelOp, chosen: Settings) -> WorkDivision:
    """The division of an operation among the cores, by hints (``op.cores``) or by the passes. The
    only reduced dim that may be divided is K of a matmul, whose partial sums are added up.
    """
    hints = {symbol: n for symbol, n in zip(op.symbols, op.cores, strict=False) if n > 1}
    division = divide_op(op, chosen.sencores, hints, chosen.lx_fraction)
    if op.kind is OpKind.MATMUL:
        return division
    written = {symbol for k, symbol in enumerate(op.symbols) if op.output.has(k)}
    splits = {s: n if s in written else 1 for s, n in division.splits.items()}
    whole = [s for s, n in division.splits.items() if n > 1 and s not in written]
    if hints and whole:
        raise LaunchError(
            "SPY982",
            f"a work division hint cannot divide {whole[0]} of {op.name}",
            expected="dims of the result: only matmuls add up what several cores reduced",
            found=f"{division.splits[whole[0]]} cores",
        )
    why = division.why
    if whole:
        why += f"\nreduced dims stay whole: {', '.join(whole)}"
    return replace(division, splits=splits, why=why)


def _undivided(
    operations: KernelOperations, whole: Collection[int], k_fast: bool
) -> list[KernelOp]:
    """The operations before their work is divided."""
    # of the arguments once the constants that are read follow the tensors; -1: scratch
    count, constants = operations.builder.builder.arguments, operations.constants
    others = [k for k in range(count) if k not in constants]
    known = enumerate([*others, *read_constants(operations)])
    numbers = {-1: -1} | {number: k for k, number in known}
    pairs = zip(operations.specs, operations.paths, strict=True)
    ops = (kernel_op(operations, spec, path, numbers, whole) for spec, path in pairs)
    return [op if k_fast else replace(op, k_fast=False) for op in ops]


def _agreed(
    ops: Sequence[KernelOp], divisions: list[WorkDivision], chosen: Settings
) -> list[KernelOp]:
    """The operations divided so that results stay in LX; ``divisions`` is changed accordingly."""
    divided = [with_division(op, division) for op, division in zip(ops, divisions, strict=True)]
    if chosen.lx_planning:
        machine = machine_with(default_machine(), chosen.lx_fraction)
        changed = divide_for_lx(divided, divisions, chosen.lx_capacity_bytes, machine)
        for step, op in changed.items():
            divided[step], divisions[step] = op, divisions[step].changed_to(op.splits)
    return divided


class PlannedKernel(msgspec.Struct, frozen=True):
    """``arguments``: tensors by arg_index; ``constants``: (number, dtype) of those behind them.

    ``notes``: reports of the passes by file name. ``made_for``: per device operation, the number
    of the ir.Operation that it was made for.
    """

    kernel: Kernel
    arguments: tuple[HostBuffer, ...]
    constants: tuple[tuple[float, str], ...]
    notes: Notes
    made_for: Ints

    @property
    def segments(self) -> int:
        """Segments a bundle of baked addresses needs: one per argument, and one for the pool."""
        has_pool = KernelMemory.of(self.kernel).pool_bytes > 0
        return len(self.arguments) + len(self.constants) + has_pool

    @property
    def text(self) -> str:
        """The arguments of ``async_compile.sdsc`` in generated code, after the name."""
        arguments = [argument.extents for argument in self.arguments]
        more = f"arguments={arguments!r}"
        if self.constants:
            more += f", constants={list(self.constants)!r}"
        if self.notes:
            more += f", notes={dict(self.notes)!r}"
        return f"{kernel_text(self.kernel)}, {more}"


def planned_kernel(
    operations: KernelOperations,
    arguments: Sequence[HostBuffer],
    whole: Collection[int] = (),
    printer: PassPrinter | None = None,
) -> PlannedKernel:
    """The kernel of ``operations``. ``whole``: regions that hold results of full size even in
    loops. ``printer``: shows the passes; None for none.
    """
    chosen, notes = settings(), dict[str, str]()
    is_logged = printer is not None and logger.isEnabledFor(logging.INFO)
    is_noted = is_logged or wants_notes()
    shown = PassPrinter(None) if printer is None else PassPrinter(_text, printer)
    for change in OPERATION_PASSES:
        operations = shown.run(change.__name__, change, operations)
    undivided = _undivided(operations, whole, chosen.core_id_k_fast_emission)
    divisions: list[WorkDivision] = []

    def divide(name: str, _: Kernel) -> Kernel:
        divisions[:] = divisions or [_division(op, chosen) for op in undivided]
        rows = zip(undivided, divisions, strict=True)
        divided = [with_division(op, division.after(name)) for op, division in rows]
        return looped(divided, operations.paths)

    def agree(_: Kernel) -> Kernel:
        agreed = _agreed(undivided, divisions, chosen)
        if is_noted:
            notes[DIVISIONS_FILE] = divisions_text(agreed, divisions)
        return looped(agreed, operations.paths)

    def place_in_lx(kernel: Kernel) -> Kernel:
        if not chosen.lx_planning:
            return kernel
        plan = plan_scratchpad(kernel, chosen.lx_capacity_bytes, chosen.lx_fraction)
        if is_noted:
            notes[LX_FILE] = report_text(plan)
        return with_offsets(kernel, LX, plan.placed)

    kernel: Kernel = looped(undivided, operations.paths)
    for name in DIVISION_PASSES:
        kernel = shown.run(name, partial(divide, name), kernel)
    kernel = shown.run(LX_DIVISION, agree, kernel)
    if is_logged:
        logger.info("work division:\n%s", notes[DIVISIONS_FILE])
    kernel = shown.run("scratchpad_planning", place_in_lx, kernel)
    kernel = shown.run(
        "hbm_pool_planning", lambda each: with_offsets(each, POOL, pool_offsets(each)), kernel
    )
    read = (operations.constants[k] for k in read_constants(operations))
    numbers = tuple((constant.number, constant.dtype) for constant in read)
    made_for = tuple(spec.made_for for spec in operations.specs)
    return PlannedKernel(kernel, tuple(arguments), numbers, notes, made_for)


def _text(kernel: KernelOperations | Kernel) -> str:
    if isinstance(kernel, KernelOperations):
        return str(kernel)
    return f"{spec_text(to_op_specs(kernel))}\n"


# --- operations of a kernel: undivided, unplaced ----------------------------------------------


def kernel_op(
    kernel: KernelOperations,
    operation: DeviceOp,
    path: LoopPath,
    numbers: Mapping[int, int],
    whole: Collection[int],
) -> KernelOp:
    """The `KernelOp` of a device operation, its scratch memory still unplaced.

    ``path``: the loops around it. ``numbers``: of the kernel's arguments, by number in the program.
    Loops advance through arguments and the regions ``whole``; other regions hold one tile, reused
    in every iteration. LoweringError for tiles that do not begin with a stick, and for rows of a
    gather in several steps.
    """
    values = [*operation.inputs, operation.written]
    # Dims with the same pitches in all operands are joined, unless loops or hints refer to one
    walked = iterated(operation, joined=not (path or path.core_counts))
    dims, is_gather = walked.dims, operation.kind is OpKind.GATHER
    if is_gather and sum(dim.role == 1 for dim in dims) > 1:
        raise LoweringError("rows of a gather in several steps")
    extents = [_walked_extent(dim, operation.lane_multiple, walked.formats) for dim in dims]
    # loops over tiles of one element, for which the views have no dim
    unit_loops = sorted({loop for value in values for loop, pitch in value.tile_pitches if pitch})
    loop_dims = _loop_dims(path, dims, unit_loops)
    extents += [1] * len(unit_loops)
    tensors = []
    for number, value in enumerate(values):
        factors = [dim.factors[number] for dim in dims]
        steps = dict(value.tile_pitches)
        memory, region = kernel.regions[value.region], value.region
        argument = numbers[memory.argument]
        moves = argument >= 0 or region in whole
        tensor = KernelTensor(
            walked.formats[number],
            (*(f.pitch_bytes for f in factors), *(steps.get(loop, 0) for loop in unit_loops)),
            next((k for k, factor in enumerate(factors) if factor.lane), -1),
            argument,
            HBM if argument >= 0 else POOL,
            size_bytes=memory.span_bytes,
            offset_bytes=value.view.offset_bytes,
            is_tile=bool(path) and not moves,
            buffer=f"arg_{argument}" if argument >= 0 else f"tmp_{region}",
        )
        strides = () if tensor.is_tile else _strides(tensor, extents, loop_dims, path.counts)
        tensors.append(tensor if not any(strides) else replace(tensor, strides=strides))
    roles = (
        tuple(dim.role for dim in dims)
        if is_gather
        else roles_of(operation.kind, tensors, len(extents))
    )
    return KernelOp(
        operation.name,
        operation.kind,
        tuple(extents),
        tuple(tensors),
        roles,
        constants=tuple(operation.constants.items()),
        mask_from=operation.mask_from,
        rows=walked.rows,
        loop_dims=loop_dims,
        cores=_asked_cores(path, operation, dims, len(extents)),
    )


def _walked_extent(dim: IterationDim, multiple: int, formats: Sequence[str]) -> int:
    """Elements along a dim, rounded up if it is the lane dim of tensors with sticks of different
    lengths, or if the operation requires a ``multiple`` (0 for none).
    """
    along = [name for name, factor in zip(formats, dim.factors, strict=True) if factor.lane]
    lanes = {find_stored_format(name).elements_per_stick for name in along}
    if not lanes or (not multiple and len(lanes) == 1):
        return dim.extent
    multiple = multiple or max(lanes)
    return -(-dim.extent // multiple) * multiple


def _asked_cores(
    path: LoopPath, operation: DeviceOp, dims: Sequence[IterationDim], rank: int
) -> Ints:
    """Number of cores that hints assign to each dim, empty without hints. A host dim in several
    pieces is divided along the outermost one. Hints do not apply to restickifies.
    """
    if not path.core_counts or operation.kind is OpKind.RESTICKIFY:
        return ()
    cores = [1] * rank
    for host_dim, count in path.core_counts:
        number = next((k for k, dim in enumerate(dims) if dim.role == host_dim), None)
        if number is not None:
            cores[number] = count
    return tuple(cores)


def _loop_dims(path: LoopPath, dims: Sequence[IterationDim], unit_loops: Sequence[int]) -> Ints:
    """Per loop the dim it moves along: the outermost piece of its host dim, or a unit tile dim."""
    first: dict[int | None, int] = {dim.role: k for k, dim in reversed([*enumerate(dims)])}
    return tuple(
        len(dims) + unit_loops.index(loop) if loop in unit_loops else first.get(host_dim, -1)
        for loop, host_dim in enumerate(path.dims)
    )


def _strides(
    tensor: KernelTensor, extents: Sequence[int], loop_dims: Ints, counts: Sequence[Any]
) -> tuple[Any, ...]:
    """Bytes per iteration of every loop.

    Of two loops along one dim, an iteration of the outer one advances by all tiles of the inner.
    """
    reached, strides = list(extents), [0] * len(loop_dims)
    for loop in reversed(range(len(loop_dims))):
        dim = loop_dims[loop]
        if dim < 0:
            continue
        unit = tensor.lanes if dim == tensor.lane else 1
        if tensor.pitches[dim] and reached[dim] % unit:
            raise LoweringError(f"tiles of {reached[dim]} elements, in steps of {unit}")
        strides[loop] = reached[dim] // unit * tensor.pitches[dim]
        reached[dim] *= counts[loop]
    return tuple(strides)
