"""Scratchpad planning as a whole: a kernel in, places in LX and the reasons for all others out.

Which buffers may lie in LX is a list of rules that say why not. Source: hardware reference §4.3 and
§4.7: the operations of the June 2026 and the August 2026 planner, and `all` (the option
allow_all_ops_in_lx_planning). A result may take over the place of an operand where the operation is
pointwise, uses the operand for the last time, and both agree in size and device layout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spyre.errors import LaunchError
from spyre.torch_backend.inductor.base import lx_capacity_bytes
from spyre.torch_backend.inductor.bundles import Kernel
from spyre.torch_backend.inductor.scratchpad.accesses import (
    AccessTrace,
    BufferAccess,
    CoreView,
    LiveBuffer,
    NoCoreView,
    Places,
    StepKind,
    TraceStep,
    access_trace,
    buffer_of,
    first_is_write,
    live_range,
    outlives,
)
from spyre.torch_backend.inductor.scratchpad.solvers import (
    solve_best_fit,
    solve_first_fit,
    solve_greedy,
    solve_optimal,
)

_JUNE = frozenset({"max", "amax", "sum", "exp", "sub", "mul", "mean", "add", "rsqrt"})
_AUGUST_ADDS = frozenset(
    {"maximum", "clone", "neg", "mm", "bmm", "batched_matmul", "div", "realdiv", "expand", "silu"}
    | {"batchmatmul", "identity"}
)
OPERATIONS: Mapping[str, frozenset[str] | None] = {
    "june": _JUNE,
    "august": _JUNE | _AUGUST_ADDS,
    "all": None,
}
"""Per rule, the operations whose results may lie in LX (None: those of every operation)."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a kernel does not say of its buffers, as names."""

    graph_inputs: frozenset[str] = frozenset()
    graph_outputs: frozenset[str] = frozenset()
    used_outside: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        graph_inputs: Collection[str] = (),
        graph_outputs: Collection[str] = (),
        used_outside: Collection[str] = (),
    ) -> Surroundings:
        """From any collections of names."""
        return cls(frozenset(graph_inputs), frozenset(graph_outputs), frozenset(used_outside))


@dataclass(frozen=True, slots=True)
class LxCandidate:
    """A buffer in its kernel, with the accesses rules ask about."""

    name: str
    accesses: Sequence[tuple[int, BufferAccess]]
    operations: AccessTrace
    surroundings: Surroundings
    allowed: frozenset[str] | None

    @property
    def producer(self) -> TraceStep:
        """The operation that touches it first."""
        return self.operations.steps[self.accesses[0][0]]

    def users(self) -> list[TraceStep]:
        """Every operation that touches it, once per argument."""
        return [self.operations.steps[step] for step, _ in self.accesses]


def refusals(
    operations: AccessTrace, surroundings: Surroundings, allowed: frozenset[str] | None
) -> dict[str, str | None]:
    """Per buffer of a kernel, in the order of first use: why it may not lie in LX, or None."""
    return {
        name: _refusal(LxCandidate(name, accesses, operations, surroundings, allowed))
        for name, accesses in operations.accesses().items()
    }


def _refusal(candidate: LxCandidate) -> str | None:
    return next((why for rule in RULES if (why := rule(candidate)) is not None), None)


def _is_of_the_graph(c: LxCandidate) -> str | None:
    for names, what in (
        (c.surroundings.graph_inputs, "is an input of the graph"),
        (c.surroundings.graph_outputs, "is an output of the graph"),
        (c.surroundings.used_outside, "is used outside the kernel"),
    ):
        if c.name in names:
            return what
    return None


def _is_not_made_here(c: LxCandidate) -> str | None:
    return None if first_is_write(c.accesses) else f"{c.producer.name} reads it before it is made"


def _is_used_once(c: LxCandidate) -> str | None:
    return "is used by one operation only" if len({s for s, _ in c.accesses}) < 2 else None


def _has_other_producer(c: LxCandidate) -> str | None:
    if c.allowed is None or c.producer.name in c.allowed:
        return None
    return f"results of {c.producer.name} are not planned by this rule"


def _is_a_k_split(c: LxCandidate) -> str | None:
    split = (op for op in c.users() if c.name in op.writes and op.splits_reduction)
    return next((f"cores share the terms that {op.name} sums into it" for op in split), None)


def _leaves_lx(c: LxCandidate) -> str | None:
    outside = (op for op in c.users() if op.kind in (StepKind.EXTERNAL, StepKind.RESTICKIFY))
    return next((f"{op.name} works on HBM" for op in outside), None)


def _moves(c: LxCandidate) -> str | None:
    moved = (s for s, access in c.accesses if access.moves)
    return next((f"a loop moves what {c.operations.steps[s].name} uses of it" for s in moved), None)


def _has_no_view(c: LxCandidate) -> str | None:
    for step, access in c.accesses:
        if isinstance(access.view, NoCoreView):
            return f"in {c.operations.steps[step].name} it {access.view.why}"
    return None


def _is_seen_differently(c: LxCandidate) -> str | None:
    first, producer = c.accesses[0][1], c.producer
    for step, access in c.accesses:
        name = c.operations.steps[step].name
        if access.device_dtype != first.device_dtype:
            return f"{producer.name} makes it as {first.device_dtype}, {name} reads another format"
        if access.view != first.view:
            return f"per core {producer.name} makes {first.view}, {name} uses {access.view}"
    return None


RULES: tuple[Callable[[LxCandidate], str | None], ...] = (
    _is_of_the_graph,
    _is_not_made_here,
    _is_used_once,
    _has_other_producer,
    _is_a_k_split,
    _leaves_lx,
    _moves,
    _has_no_view,
    _is_seen_differently,
)
"""In the order they are asked; the first that refuses is the one reported."""


def lx_bytes(accesses: Sequence[tuple[int, BufferAccess]]) -> int:
    """Bytes of an eligible buffer in one core's LX."""
    view = accesses[0][1].view
    assert isinstance(view, CoreView)
    return view.size_bytes


ByName = Mapping[str, Sequence[tuple[int, BufferAccess]]]


def in_place_parents(operations: AccessTrace, eligible: Collection[str]) -> dict[str, str]:
    """Per result that may be made in place, the operand whose place it may take.

    ``eligible``: buffers that may lie in LX; others take no part. An operand is given to one
    result only, and a result takes the first of its operands that it may.
    """
    accesses = operations.accesses()
    taking_part = {name: accesses[name] for name in eligible}
    parents: dict[str, str] = {}
    for step, operation in enumerate(operations.steps):
        if operation.kind is not StepKind.POINTWISE:
            continue
        dying = _dying(operations, taking_part, step)
        for child in _born(operations, taking_part, step):
            fitting = (n for n in dying if _agree(operation.accesses, n, child))
            if (parent := next(fitting, None)) is not None:
                parents[child] = parent
                dying.remove(parent)
    return parents


def _born(operations: AccessTrace, accesses: ByName, step: int) -> list[str]:
    """Results whose life begins at ``step``."""
    written = [n for n in operations.steps[step].writes if n in accesses]
    return [
        name
        for name in written
        if live_range(accesses[name], operations.loops)[0] == step
        and first_is_write(accesses[name])
    ]


def _dying(operations: AccessTrace, accesses: ByName, step: int) -> list[str]:
    """Operands whose life ends at ``step``, and that no later iteration of a loop reads again."""
    around = [loop for loop in operations.loops if loop[0] <= step < loop[1]]
    return [
        name
        for name in operations.steps[step].reads
        if name in accesses
        and live_range(accesses[name], operations.loops)[1] == step + 1
        and not any(outlives(accesses[name], loop) for loop in around)
    ]


def _agree(accesses: Sequence[BufferAccess], parent: str, child: str) -> bool:
    """True if the operation touches both buffers at the same places, element by element."""
    seen = {
        (a.view, a.device_dtype, a.coordinates, a.size_bytes)
        for a in accesses
        if a.buffer in (parent, child)
    }
    return len(seen) == 1


Value = TypeVar("Value")
Solver = Callable[[Sequence[LiveBuffer], int], dict[str, int | None]]

SOLVERS: Mapping[str, Solver] = {
    "greedy": solve_greedy,
    "first_fit": solve_first_fit,
    "best_fit": solve_best_fit,
    "optimal": solve_optimal,
}
"""By name; the first is the default."""

NO_SURROUNDINGS = Surroundings()


@dataclass(frozen=True, slots=True)
class ScratchpadPlan:
    """What was decided for one kernel.

    ``buffers``: those that may lie in LX, in the order of first use. ``places``: their offsets
    (bytes, the same on every core), None where they do not fit. ``refused``: why each other buffer
    may not. ``steps``: operations of the kernel.
    """

    buffers: tuple[LiveBuffer, ...]
    places: Places
    refused: Mapping[str, str]
    steps: int
    capacity_bytes: int
    solver: str
    rule: str

    @property
    def allocations(self) -> dict[str, dict[str, int]]:
        """Allocations of the buffers that lie in LX, as `with_allocations` takes them."""
        return {name: {"lx": at} for name, at in self.places.items() if at is not None}


def plan_scratchpad(
    kernel: Kernel,
    names: Sequence[Sequence[str]],
    *,
    surroundings: Surroundings = NO_SURROUNDINGS,
    rule: str = "june",
    solver: str = "greedy",
    capacity_bytes: int | None = None,
) -> ScratchpadPlan:
    """Places in LX for the intermediate results of a kernel whose work is divided already.

    ``kernel``: the operations in the order they run; those of several kernels may follow one
    another, since LX keeps its contents between launches. ``names``: a name per tensor, as in
    `access_trace`. ``rule``: of `OPERATIONS`. ``solver``: of `SOLVERS`. ``capacity_bytes`` of one
    core; None: `lx_capacity_bytes`. LaunchError SPY985 for unknown names, BundleError SPY988.
    """
    chosen = _known("solver", solver, SOLVERS)
    operations = access_trace(kernel, names)
    buffers, refused = buffers_of(operations, surroundings=surroundings, rule=rule)
    capacity = lx_capacity_bytes() if capacity_bytes is None else capacity_bytes
    return ScratchpadPlan(
        buffers,
        chosen(buffers, capacity),
        refused,
        len(operations.steps),
        capacity,
        solver,
        rule,
    )


def buffers_of(
    operations: AccessTrace, *, surroundings: Surroundings = NO_SURROUNDINGS, rule: str = "june"
) -> tuple[tuple[LiveBuffer, ...], dict[str, str]]:
    """The buffers that may lie in LX, sizes per core; and why each other one may not."""
    why = refusals(operations, surroundings, _known("rule", rule, OPERATIONS))
    accesses = operations.accesses()
    eligible = [name for name in accesses if why[name] is None]
    parents = in_place_parents(operations, eligible)
    buffers = tuple(
        buffer_of(
            name, lx_bytes(accesses[name]), accesses[name], operations.loops, parents.get(name)
        )
        for name in eligible
    )
    return buffers, {name: text for name, text in why.items() if text is not None}


def _known(what: str, name: str, among: Mapping[str, Value]) -> Value:
    if name not in among:
        raise LaunchError(
            "SPY985",
            f"LX planning has no {what} of this name",
            expected=", ".join(among),
            found=name,
        )
    return among[name]
