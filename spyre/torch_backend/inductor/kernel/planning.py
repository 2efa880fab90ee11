"""Planning of one kernel: passes on its operations, work division, LX and pool memory.

The coarse-tiling document runs these passes on ir.Operations before scheduling; here they run on
the operations of one kernel, whose layouts and memory are known. One method per pass, in the order
of `KERNEL_PASSES` (hardware reference §4).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from spyre.dtypes import find_stored_format
from spyre.errors import LaunchError
from spyre.mlir.builder import POOL
from spyre.torch_backend.inductor.base.layouts import HostBuffer
from spyre.torch_backend.inductor.base.notes import (
    DIVISIONS_FILE,
    LX_FILE,
    Notes,
    PassPrinter,
    wants_notes,
)
from spyre.torch_backend.inductor.base.settings import Settings, settings
from spyre.torch_backend.inductor.bundles.generation import KernelMemory
from spyre.torch_backend.inductor.bundles.kernel_op import (
    HBM,
    LX,
    Kernel,
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
from spyre.torch_backend.inductor.kernel.passes import (
    KernelOperations,
    LoopPath,
    dedup_and_promote_constants,
    insert_bmm_padding,
    looped,
    read_constants,
    remove_unread,
)
from spyre.torch_backend.inductor.scratchpad import (
    plan_scratchpad,
    pool_offsets,
    report_text,
    with_offsets,
)
from spyre.torch_backend.program import (
    DeviceOp,
    Ints,
    IterationDim,
    LoweringError,
    OpKind,
    iterated,
)

OPERATION_PASSES = (remove_unread, insert_bmm_padding, dedup_and_promote_constants)
KERNEL_PASSES = (
    *(change.__name__ for change in OPERATION_PASSES),
    *DIVISION_PASSES,
    "scratchpad_planning",
    "hbm_pool_planning",
)
"""Passes on the operations of a bundle; from ``span_reduction`` on these are `KernelOp`s."""


class KernelPlanning:
    """The passes on one kernel, and their state. ``whole``: regions that hold results of full size
    even in loops. Belongs to the thread that compiles the kernel.
    """

    def __init__(self, operations: KernelOperations, whole: Collection[int]) -> None:
        self.operations = operations
        self.kernel: Kernel = ()
        self.notes: dict[str, str] = {}
        self._whole = whole
        self._settings, self._wanted = settings(), wants_notes()
        self._undivided: list[KernelOp] = []
        self._divisions: list[WorkDivision] = []

    def run(self, printer: PassPrinter) -> None:
        for change in OPERATION_PASSES:
            printer.run(change.__name__, partial(self._apply, change))
        self._write_kernel()
        for name in DIVISION_PASSES:
            printer.run(name, partial(self._divide, name))
        printer.run("scratchpad_planning", self._place_in_lx)
        printer.run("hbm_pool_planning", self._place_in_pool)

    def text(self) -> str:
        """The operations as text; from ``span_reduction`` on in the document's form."""
        return (
            f"{spec_text(to_op_specs(self.kernel))}\n" if self._undivided else str(self.operations)
        )

    def _write_kernel(self) -> None:
        kernel, numbers = self.operations, _argument_numbers(self.operations)
        pairs = zip(kernel.specs, kernel.paths, strict=True)
        ops = (kernel_op(kernel, spec, path, numbers, self._whole) for spec, path in pairs)
        k_fast = self._settings.core_id_k_fast_emission
        self._undivided = [op if k_fast else replace(op, k_fast=False) for op in ops]
        self.kernel = looped(self._undivided, self.operations.paths)

    def _apply(self, change: Callable[[KernelOperations], KernelOperations]) -> None:
        self.operations = change(self.operations)

    def _divide(self, name: str) -> None:
        """Divide work as after the pass ``name``; the first pass decides for all."""
        self._divisions = self._divisions or [
            _division(op, self._settings) for op in self._undivided
        ]
        pairs = zip(self._undivided, self._divisions, strict=True)
        divided = [with_division(op, division.after(name)) for op, division in pairs]
        self.kernel = looped(divided, self.operations.paths)
        if self._wanted and name == DIVISION_PASSES[-1]:
            self.notes[DIVISIONS_FILE] = divisions_text(divided, self._divisions)

    def _place_in_lx(self) -> None:
        chosen = self._settings
        if not chosen.lx_planning:
            return
        plan = plan_scratchpad(self.kernel, chosen.lx_capacity_bytes)
        if self._wanted:
            self.notes[LX_FILE] = report_text(plan)
        self.kernel = with_offsets(self.kernel, LX, plan.placed)

    def _place_in_pool(self) -> None:
        self.kernel = with_offsets(self.kernel, POOL, pool_offsets(self.kernel))


def _argument_numbers(kernel: KernelOperations) -> Mapping[int, int]:
    """Numbers of the arguments once the constants that are read follow the tensors; -1: scratch."""
    count, constants = kernel.builder.builder.arguments, kernel.constants
    others = [k for k in range(count) if k not in constants]
    return {-1: -1} | {number: k for k, number in enumerate([*others, *read_constants(kernel)])}


def _division(op: KernelOp, chosen: Settings) -> WorkDivision:
    """The division of an operation among the cores, by hints (``op.cores``) or by the passes. The
    only reduced dim that may be divided is K of a matmul, whose partial sums are added up.
    """
    hints = {symbol: n for symbol, n in zip(op.symbols, op.cores, strict=False) if n > 1}
    division = divide_op(op, chosen.sencores, hints)
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


@dataclass(frozen=True, slots=True)
class PlannedKernel:
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
    stages = KernelPlanning(operations, whole)
    stages.run(PassPrinter(None) if printer is None else printer.of_kernel(stages.text))
    constants = operations.constants
    read = [constants[number] for number in read_constants(stages.operations)]
    numbers = tuple((c.number, c.dtype) for c in read)
    made_for = tuple(spec.made_for for spec in stages.operations.specs)
    return PlannedKernel(stages.kernel, tuple(arguments), numbers, stages.notes, made_for)


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
