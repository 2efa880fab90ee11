"""A kernel on its way from operations to a bundle: divided, with memory planned.

What the pre-scheduling passes of the document do to ir.Operations from padding on is done here to
the operations of one kernel, whose layouts and memory are known: a pass per method, in the order of
`KERNEL_PASSES` (hardware reference §4). Tiles of K are whole sticks, so that tiling sees what it
would see of padded factors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from spyre.errors import LaunchError
from spyre.torch_backend.inductor.base import (
    DIVISIONS_FILE,
    LX_FILE,
    SILENT,
    Notes,
    PassPrinter,
    Settings,
    settings,
    wants_notes,
)
from spyre.torch_backend.inductor.bundles import (
    Kernel,
    KernelMemory,
    KernelOp,
    Spec,
    documented,
    kernel_text,
    spec_text,
)
from spyre.torch_backend.inductor.division import (
    DISTRIBUTION,
    MATMUL_COST,
    SPAN,
    WorkDivision,
    divide_op,
    divisions_text,
    with_division,
)
from spyre.torch_backend.inductor.kernel.operands import looped
from spyre.torch_backend.inductor.kernel.operation_writing import RegionPlace, kernel_op
from spyre.torch_backend.inductor.kernel.passes import (
    KernelOperations,
    dedup_and_promote_constants,
    insert_bmm_padding,
    read_constants,
    remove_unread,
)
from spyre.torch_backend.inductor.scratchpad import (
    Surroundings,
    plan_pool,
    plan_scratchpad,
    pool_buffers,
    report_text,
    with_allocations,
)
from spyre.torch_backend.program import Ints, OpKind

KERNEL_PASSES = (
    "remove_unread",
    "insert_bmm_padding",
    "dedup_and_promote_constants",
    "span_reduction",
    "cost_model_matmul_division",
    "work_distribution",
    "scratchpad_planning",
    "hbm_pool_planning",
)
"""On the operations of each bundle; division and planning of memory see them as `KernelOp`s."""


class KernelPlanning:
    """``whole``: regions that hold results of full size, whatever loops read them. ``kernel``,
    ``notes``: what has come of the operations so far. Belongs to the thread that compiles it.
    """

    def __init__(self, operations: KernelOperations, whole: Collection[int]) -> None:
        self.operations = operations
        self.kernel: Kernel = ()
        self.notes: dict[str, str] = {}
        self._whole = whole
        self._settings, self._wanted = settings(), wants_notes()
        self._names: list[tuple[str, ...]] = []
        self._undivided: list[KernelOp] = []
        self._divisions: list[WorkDivision] = []
        self._surroundings = Surroundings(frozenset())
        self._in_lx: frozenset[str] = frozenset()

    def run(self, printer: PassPrinter) -> None:
        for name in KERNEL_PASSES:
            if name == SPAN:
                self._write_kernel()
            printer.run(name, getattr(self, name))

    def text(self) -> str:
        """The operations, in the document's form where they are those of a kernel already."""
        return f"{spec_text(documented(self.kernel))}\n" if self._names else str(self.operations)

    def _write_kernel(self) -> None:
        places = _places(self.operations, self._whole)
        operations = zip(self.operations.specs, self.operations.paths, strict=True)
        pairs = [kernel_op(operation, places, path) for operation, path in operations]
        k_fast = self._settings.core_id_k_fast_emission
        self._undivided = [op if k_fast else replace(op, k_fast=False) for op, _ in pairs]
        self._names = [row for _, row in pairs]
        self.kernel = looped(self._undivided, self.operations.paths)
        given = frozenset(place.name for place in places.values() if place.argument >= 0)
        self._surroundings = Surroundings(given)

    # --- passes on operations --------------------------------------------------------------------

    def remove_unread(self) -> None:
        self.operations = remove_unread(self.operations)

    def insert_bmm_padding(self) -> None:
        self.operations = insert_bmm_padding(self.operations)

    def dedup_and_promote_constants(self) -> None:
        self.operations = dedup_and_promote_constants(self.operations)

    # --- passes on specs -------------------------------------------------------------------------

    def span_reduction(self) -> None:
        """See `division.span`; the passes of division look at one operation after the other."""
        self._divisions = [_division(op, self._settings) for op in self._undivided]
        self._divide(SPAN)

    def cost_model_matmul_division(self) -> None:
        self._divide(MATMUL_COST)

    def work_distribution(self) -> None:
        divided = self._divide(DISTRIBUTION)
        if self._wanted:
            self.notes[DIVISIONS_FILE] = divisions_text(divided, self._divisions)

    def _divide(self, name: str) -> Sequence[KernelOp]:
        """The operations as they are after the pass ``name`` of work division."""
        pairs = zip(self._undivided, self._divisions, strict=True)
        divided = [with_division(op, division.after(name)) for op, division in pairs]
        self.kernel = looped(divided, self.operations.paths)
        return divided

    def scratchpad_planning(self) -> None:
        chosen = self._settings
        if not chosen.lx_planning:
            return
        plan = plan_scratchpad(
            self.kernel,
            self._names,
            surroundings=self._surroundings,
            rule=chosen.lx_rule,
            solver=chosen.lx_solver,
            capacity_bytes=chosen.lx_capacity_bytes,
        )
        if self._wanted:
            self.notes[LX_FILE] = report_text(plan)
        self._in_lx = frozenset(plan.allocations)
        self.kernel = with_allocations(self.kernel, self._names, plan.allocations)

    def hbm_pool_planning(self) -> None:
        around, in_lx = self._surroundings, self._in_lx
        pool = plan_pool(pool_buffers(self.kernel, self._names, surroundings=around, in_lx=in_lx))
        self.kernel = with_allocations(self.kernel, self._names, pool.allocations)


def _places(kernel: KernelOperations, whole: Collection[int]) -> Mapping[int, RegionPlace]:
    """Every region's place; numbers stand behind the tensors among the arguments."""
    low = kernel.low
    tensors = low.builder.arguments - len(low.constants)
    others = (k for k in range(low.builder.arguments) if k not in low.constants)
    numbers = dict.fromkeys(low.constants, -1)
    numbers |= {number: tensors + k for k, number in enumerate(read_constants(kernel))}
    numbers |= {number: k for k, number in enumerate(others)}
    places = {}
    for region, memory in enumerate(low.builder.regions):
        number = numbers[memory.argument] if memory.argument >= 0 else -1
        name = f"arg_{number}" if number >= 0 else f"tmp_{region}"
        moves = number >= 0 or region in whole
        places[region] = RegionPlace(name, number, memory.span_bytes, moves)
    return places


def _division(op: KernelOp, chosen: Settings) -> WorkDivision:
    """How the cores share an operation: as hints say (``op.cores``), else as the passes do. Of
    reduced dims only K of a matmul is divided, whose partial sums are added up.
    """
    hints = {symbol: n for symbol, n in zip(op.symbols, op.cores, strict=False) if n > 1}
    k_fast = chosen.core_id_k_fast_emission
    division = divide_op(op, chosen.sencores, chosen.work_division, hints, k_fast=k_fast)
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
class HostBuffer:
    """A tensor a kernel is given: host extents and strides (elements), torch dtype name."""

    sizes: Ints
    strides: Ints
    dtype: str


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """``arguments``: tensors by arg_index; ``constants``: (number, dtype) of those behind them.

    ``notes``: for people, how it came to be this kernel.
    """

    kernel: Kernel
    arguments: tuple[HostBuffer, ...]
    constants: tuple[tuple[float, str], ...]
    notes: Notes

    @property
    def specs(self) -> tuple[Spec, ...]:
        """Its operations in the document's form."""
        return documented(self.kernel)

    @property
    def segments(self) -> int:
        """Segments a bundle of baked addresses needs: one per argument, and one for the pool."""
        has_pool = KernelMemory.of(self.kernel).pool_bytes > 0
        return len(self.arguments) + len(self.constants) + has_pool

    @property
    def text(self) -> str:
        """What generated code passes to ``async_compile.sdsc`` after the name."""
        arguments = [(a.sizes, a.strides, a.dtype) for a in self.arguments]
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
    """The kernel of ``operations``, which are complete. ``whole``: regions that hold results of
    full size, whatever loops read them. ``printer``: of the graph it belongs to; None: nobody is
    shown its passes.
    """
    stages = KernelPlanning(operations, whole)
    stages.run(SILENT if printer is None else printer.of_kernel(stages.text))
    constants = operations.low.constants
    read = [constants[number] for number in read_constants(stages.operations)]
    numbers = tuple((c.number, c.dtype) for c in read)
    return PlannedKernel(stages.kernel, tuple(arguments), numbers, stages.notes)
