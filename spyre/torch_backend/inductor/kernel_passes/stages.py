"""`KernelStages`: a kernel on its way from operations to specs, divided and with memory planned.

What the pre-scheduling passes of the document do to ir.Operations from padding on is done here to
the operations of one kernel, whose layouts and memory are known: a pass per method, in the order of
`passes.names.KERNEL_PASSES`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from spyre.torch_backend.inductor.division.plan import DISTRIBUTION, MATMUL, SPAN, Division
from spyre.torch_backend.inductor.kernel_notes import DIVISIONS_FILE, LX_FILE, divisions_text
from spyre.torch_backend.inductor.kernel_passes.dedup_constants import dedup_and_promote_constants
from spyre.torch_backend.inductor.kernel_passes.division import divided, divisions_of, numbered
from spyre.torch_backend.inductor.kernel_passes.insert_bmm_padding import insert_bmm_padding
from spyre.torch_backend.inductor.kernel_passes.operations import KernelOperations
from spyre.torch_backend.inductor.kernel_passes.unread import read_constants, remove_unread
from spyre.torch_backend.inductor.loop_paths import looped
from spyre.torch_backend.inductor.observing import wants_notes
from spyre.torch_backend.inductor.op_spec import LoopSpec, OpSpec, Spec
from spyre.torch_backend.inductor.pass_printing import PassPrinter
from spyre.torch_backend.inductor.passes.names import KERNEL_PASSES
from spyre.torch_backend.inductor.pool_planning import plan_pool, pool_buffers
from spyre.torch_backend.inductor.scratchpad.allocation import with_allocations
from spyre.torch_backend.inductor.scratchpad.eligibility import Surroundings
from spyre.torch_backend.inductor.scratchpad.plan import plan_scratchpad
from spyre.torch_backend.inductor.scratchpad.report import report_text
from spyre.torch_backend.inductor.settings import settings
from spyre.torch_backend.inductor.spec_text import spec_text
from spyre.torch_backend.inductor.spec_views import LX
from spyre.torch_backend.inductor.spec_writing import Place, spec_of


class KernelStages:
    """``whole``: regions that hold results of full size, whatever loops read them. ``specs``,
    ``notes``: what has come of the kernel so far. Belongs to the thread that compiles it.
    """

    def __init__(self, operations: KernelOperations, whole: Collection[int]) -> None:
        self.operations = operations
        self.specs: list[Spec] = []
        self.notes: dict[str, str] = {}
        self._whole = whole
        self._settings, self._wanted = settings(), wants_notes()
        self._names: list[tuple[str, ...]] = []
        self._undivided: list[OpSpec] = []
        self._divisions: list[Division] = []
        self._surroundings = Surroundings(frozenset())
        self._in_lx: frozenset[str] = frozenset()

    def run(self, printer: PassPrinter) -> None:
        """All passes."""
        for name in KERNEL_PASSES:
            if name == SPAN:
                self._write_specs()
            printer.run(name, getattr(self, name))
        self.specs = [_plain_in_lx(spec) for spec in self.specs]

    def text(self) -> str:
        """The operations, or the specs where they are that already."""
        return f"{spec_text(self.specs)}\n" if self._names else str(self.operations)

    def _write_specs(self) -> None:
        places = _places(self.operations, self._whole)
        operations = zip(self.operations.specs, self.operations.paths, strict=True)
        pairs = [spec_of(operation, places, path) for operation, path in operations]
        self._undivided = [numbered(spec, self._settings) for spec, _ in pairs]
        self._names = [row for _, row in pairs]
        self.specs = looped(self._undivided, self.operations.paths)
        given = frozenset(place.name for place in places.values() if place.argument >= 0)
        self._surroundings = Surroundings(given)

    # --- passes on operations --------------------------------------------------------------------

    def remove_unread(self) -> None:
        """See `kernel_passes.unread`."""
        self.operations = remove_unread(self.operations)

    def insert_bmm_padding(self) -> None:
        """See `kernel_passes.insert_bmm_padding`."""
        self.operations = insert_bmm_padding(self.operations)

    def dedup_and_promote_constants(self) -> None:
        """See `kernel_passes.dedup_constants`."""
        self.operations = dedup_and_promote_constants(self.operations)

    # --- passes on specs -------------------------------------------------------------------------

    def span_reduction(self) -> None:
        """See `division.span`; the passes of division look at one operation after the other."""
        self._divisions = divisions_of(self._undivided, self._settings)
        self._divide(SPAN)

    def cost_model_matmul_division(self) -> None:
        """See `division.matmul_cost`."""
        self._divide(MATMUL)

    def work_distribution(self) -> None:
        """See `division.default`."""
        found = self._divide(DISTRIBUTION)
        if self._wanted:
            self.notes[DIVISIONS_FILE] = divisions_text(found, self._divisions)

    def _divide(self, name: str) -> Sequence[OpSpec]:
        found = divided(self._undivided, self._divisions, name)
        self.specs = looped(found, self.operations.paths)
        return found

    def scratchpad_planning(self) -> None:
        """See `scratchpad`."""
        chosen = self._settings
        if not chosen.lx_planning:
            return
        plan = plan_scratchpad(
            self.specs,
            self._names,
            surroundings=self._surroundings,
            rule=chosen.lx_rule,
            solver=chosen.lx_solver,
            capacity_bytes=chosen.lx_capacity_bytes,
        )
        if self._wanted:
            self.notes[LX_FILE] = report_text(plan)
        self._in_lx = frozenset(plan.allocations)
        self.specs = with_allocations(self.specs, self._names, plan.allocations)

    def hbm_pool_planning(self) -> None:
        """See `pool_planning`."""
        around, in_lx = self._surroundings, self._in_lx
        pool = plan_pool(pool_buffers(self.specs, self._names, surroundings=around, in_lx=in_lx))
        self.specs = with_allocations(self.specs, self._names, pool.allocations)


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


def _places(kernel: KernelOperations, whole: Collection[int]) -> Mapping[int, Place]:
    """Every region's place; numbers stand behind the tensors among the arguments."""
    low = kernel.low
    tensors = low.builder.arguments - len(low.constants)
    others = (k for k in range(low.builder.arguments) if k not in low.constants)
    numbers = dict.fromkeys(low.constants, -1)
    numbers |= {number: tensors + k for k, number in enumerate(read_constants(kernel))}
    numbers |= {number: k for k, number in enumerate(others)}
    found = {}
    for region, memory in enumerate(low.builder.regions):
        number = numbers[memory.argument] if memory.argument >= 0 else -1
        name = f"arg_{number}" if number >= 0 else f"tmp_{region}"
        moves = number >= 0 or region in whole
        found[region] = Place(name, number, memory.span_bytes, moves)
    return found
