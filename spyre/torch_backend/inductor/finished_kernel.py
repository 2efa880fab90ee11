"""The last steps of a kernel: specs, work division, LX and the pool, and the text of it all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.inductor.bundle_generation import KernelMemory
from spyre.torch_backend.inductor.division.plan import Division, divide_op, with_division
from spyre.torch_backend.inductor.kernel_notes import (
    DIVISIONS_FILE,
    LX_FILE,
    Notes,
    divisions_text,
)
from spyre.torch_backend.inductor.loop_paths import LoopPath, looped
from spyre.torch_backend.inductor.observing import wants_notes
from spyre.torch_backend.inductor.op_spec import MATMUL, LoopSpec, OpSpec, Spec
from spyre.torch_backend.inductor.pool_planning import plan_pool, pool_buffers
from spyre.torch_backend.inductor.scratchpad.allocation import with_allocations
from spyre.torch_backend.inductor.scratchpad.eligibility import Surroundings
from spyre.torch_backend.inductor.scratchpad.plan import ScratchpadPlan, plan_scratchpad
from spyre.torch_backend.inductor.scratchpad.report import report_text
from spyre.torch_backend.inductor.settings import Settings, settings
from spyre.torch_backend.inductor.spec_text import spec_text
from spyre.torch_backend.inductor.spec_views import LX
from spyre.torch_backend.inductor.spec_writing import Place, spec_of
from spyre.torch_backend.inductor.unread import read_constants, read_operations
from spyre.torch_backend.program.value import Ints


@dataclass(frozen=True, slots=True)
class HostBuffer:
    """A tensor a kernel is given: host extents and strides (elements), torch dtype name."""

    sizes: Ints
    strides: Ints
    dtype: str


@dataclass(frozen=True, slots=True)
class FinishedKernel:
    """``arguments``: tensors by arg_index; ``constants``: (number, dtype) of those behind them.

    ``notes``: for people, how it came to be this kernel.
    """

    specs: tuple[Spec, ...]
    arguments: tuple[HostBuffer, ...]
    constants: tuple[tuple[float, str], ...]
    notes: Notes

    @property
    def segments(self) -> int:
        """Segments a bundle of baked addresses needs: one per argument, and one for the pool."""
        has_pool = KernelMemory.of(self.specs).pool_bytes > 0
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
        return f"{spec_text(self.specs)}, {more}"


def finished_kernel(
    low: Lowering,
    paths: Sequence[LoopPath],
    arguments: Sequence[HostBuffer],
    whole: Collection[int] = (),
) -> FinishedKernel:
    """The kernel of a program whose operations are complete; ``paths``: their loops. ``whole``:
    regions that hold results of full size, whatever loops read them.
    """
    low.builder.specs, paths = read_operations(low, paths)
    places = _places(low, whole)
    operations = zip(low.builder.specs, paths, strict=True)
    pairs = [spec_of(operation, places, path) for operation, path in operations]
    names = [row for _, row in pairs]
    chosen, wanted = settings(), wants_notes()
    notes: dict[str, str] = {}
    divisions = [_division(spec, chosen) for spec, _ in pairs]
    divided = [
        _with_division(spec, division, chosen)
        for (spec, _), division in zip(pairs, divisions, strict=True)
    ]
    if wanted:
        notes[DIVISIONS_FILE] = divisions_text(divided, divisions)
    specs = looped(divided, paths)
    given = frozenset(place.name for place in places.values() if place.argument >= 0)
    surroundings = Surroundings(given)
    if chosen.lx_planning:
        plan = _lx_plan(specs, names, surroundings, chosen)
        if wanted:
            notes[LX_FILE] = report_text(plan)
        specs = with_allocations(specs, names, plan.allocations)
        in_lx = frozenset(plan.allocations)
    else:
        in_lx = frozenset()
    pool = plan_pool(pool_buffers(specs, names, surroundings=surroundings, in_lx=in_lx))
    specs = with_allocations(specs, names, pool.allocations)
    specs = [_plain_in_lx(spec) for spec in specs]
    read = [low.constants[k] for k in read_constants(low)]
    constants = tuple((c.number, c.dtype) for c in read)
    return FinishedKernel(tuple(specs), tuple(arguments), constants, notes)


def _plain_in_lx(spec: Spec) -> Spec:
    """Nothing moves in LX: its tensors need not say so, and the document's do not."""
    if isinstance(spec, LoopSpec):
        return replace(spec, body=[_plain_in_lx(inner) for inner in spec.body])
    if not isinstance(spec, OpSpec):
        return spec
    args = [
        replace(a, per_tile_fixed=a.per_tile_fixed and LX not in a.allocation) for a in spec.args
    ]
    return replace(spec, args=args)


def _lx_plan(
    specs: Sequence[Spec],
    names: Sequence[Sequence[str]],
    surroundings: Surroundings,
    chosen: Settings,
) -> ScratchpadPlan:
    return plan_scratchpad(
        specs,
        names,
        surroundings=surroundings,
        rule=chosen.lx_rule,
        solver=chosen.lx_solver,
        capacity_bytes=chosen.lx_capacity_bytes,
    )


def _division(spec: OpSpec, chosen: Settings) -> Division:
    """Its work divided; of reduced dims only K of a matmul: its partial sums are added up."""
    division = divide_op(
        spec, chosen.sencores, chosen.work_division, k_fast=chosen.core_id_k_fast_emission
    )
    if spec.op != MATMUL:
        kept = set().union(*(c.free_symbols for c in spec.args[-1].device_coordinates))
        splits = {s: n if s in kept else 1 for s, n in division.splits.items()}
        whole = [str(s) for s, n in division.splits.items() if n > 1 and s not in kept]
        why = division.why
        if whole:
            why += f"\nreduced dims stay whole: {', '.join(whole)}"
        division = replace(division, splits=splits, why=why)
    return division


def _with_division(spec: OpSpec, division: Division, chosen: Settings) -> OpSpec:
    if spec.op == MATMUL and not chosen.core_id_k_fast_emission:
        spec = replace(spec, op_info={**spec.op_info, "k_fast": False})
    return with_division(spec, division)


def _places(low: Lowering, whole: Collection[int]) -> dict[int, Place]:
    """Every region's place; numbers stand behind the tensors among the arguments."""
    tensors = low.builder.arguments - len(low.constants)
    others = (k for k in range(low.builder.arguments) if k not in low.constants)
    numbers = dict.fromkeys(low.constants, -1)
    numbers |= {number: tensors + k for k, number in enumerate(read_constants(low))}
    numbers |= {number: k for k, number in enumerate(others)}
    found = {}
    for region, memory in enumerate(low.builder.regions):
        number = numbers[memory.argument] if memory.argument >= 0 else -1
        name = f"arg_{number}" if number >= 0 else f"tmp_{region}"
        moves = number >= 0 or region in whole
        found[region] = Place(name, number, memory.span_bytes, moves)
    return found
