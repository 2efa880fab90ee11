"""Which buffers may lie in LX, by rules that say why not.

Source: hardware reference §4.3 and §4.7: the operations of the June 2026 and the August 2026
planner, and `all` (the option allow_all_ops_in_lx_planning). Names are those of the reference,
and those operations have in SDSCs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from spyre.torch_backend.inductor.scratchpad.core_view import CoreView, NoView
from spyre.torch_backend.inductor.scratchpad.liveness import first_is_write
from spyre.torch_backend.inductor.scratchpad.operations import Access, Kind, Operation, Operations

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
    """What the kernel's specs do not say of its buffers, as names."""

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
class Candidate:
    """A buffer in its kernel, with the accesses rules ask about."""

    name: str
    accesses: Sequence[tuple[int, Access]]
    operations: Operations
    surroundings: Surroundings
    allowed: frozenset[str] | None

    @property
    def producer(self) -> Operation:
        """The operation that touches it first."""
        return self.operations.steps[self.accesses[0][0]]

    def users(self) -> list[Operation]:
        """Every operation that touches it, once per argument."""
        return [self.operations.steps[step] for step, _ in self.accesses]


def refusals(
    operations: Operations, surroundings: Surroundings, allowed: frozenset[str] | None
) -> dict[str, str | None]:
    """Per buffer of a kernel, in the order of first use: why it may not lie in LX, or None."""
    return {
        name: _refusal(Candidate(name, accesses, operations, surroundings, allowed))
        for name, accesses in operations.accesses().items()
    }


def _refusal(candidate: Candidate) -> str | None:
    return next((why for rule in RULES if (why := rule(candidate)) is not None), None)


def _is_of_the_graph(c: Candidate) -> str | None:
    for names, what in (
        (c.surroundings.graph_inputs, "is an input of the graph"),
        (c.surroundings.graph_outputs, "is an output of the graph"),
        (c.surroundings.used_outside, "is used outside the kernel"),
    ):
        if c.name in names:
            return what
    return None


def _is_not_made_here(c: Candidate) -> str | None:
    return None if first_is_write(c.accesses) else f"{c.producer.name} reads it before it is made"


def _is_used_once(c: Candidate) -> str | None:
    return "is used by one operation only" if len({s for s, _ in c.accesses}) < 2 else None


def _has_other_producer(c: Candidate) -> str | None:
    if c.allowed is None or c.producer.name in c.allowed:
        return None
    return f"results of {c.producer.name} are not planned by this rule"


def _is_a_k_split(c: Candidate) -> str | None:
    split = (op for op in c.users() if c.name in op.writes and op.splits_reduction)
    return next((f"cores share the terms that {op.name} sums into it" for op in split), None)


def _leaves_lx(c: Candidate) -> str | None:
    outside = (op for op in c.users() if op.kind in (Kind.EXTERNAL, Kind.RESTICKIFY))
    return next((f"{op.name} works on HBM" for op in outside), None)


def _moves(c: Candidate) -> str | None:
    moved = (s for s, access in c.accesses if access.moves)
    return next((f"a loop moves what {c.operations.steps[s].name} uses of it" for s in moved), None)


def _has_no_view(c: Candidate) -> str | None:
    for step, access in c.accesses:
        if isinstance(access.view, NoView):
            return f"in {c.operations.steps[step].name} it {access.view.why}"
    return None


def _is_seen_differently(c: Candidate) -> str | None:
    first, producer = c.accesses[0][1], c.producer
    for step, access in c.accesses:
        name = c.operations.steps[step].name
        if access.device_dtype != first.device_dtype:
            return f"{producer.name} makes it as {first.device_dtype}, {name} reads another format"
        if access.view != first.view:
            return f"per core {producer.name} makes {first.view}, {name} uses {access.view}"
    return None


RULES: tuple[Callable[[Candidate], str | None], ...] = (
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


def lx_bytes(accesses: Sequence[tuple[int, Access]]) -> int:
    """Bytes of an eligible buffer in one core's LX."""
    view = accesses[0][1].view
    assert isinstance(view, CoreView)
    return view.size_bytes
