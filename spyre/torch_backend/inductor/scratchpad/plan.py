"""Scratchpad planning as a whole: specs in, places in LX and the reasons for all others out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spyre.errors import LaunchError
from spyre.torch_backend.inductor.op_spec import Spec
from spyre.torch_backend.inductor.scratchpad.capacity import lx_capacity_bytes
from spyre.torch_backend.inductor.scratchpad.eligibility import (
    OPERATIONS,
    Surroundings,
    lx_bytes,
    refusals,
)
from spyre.torch_backend.inductor.scratchpad.fit import solve_best_fit, solve_first_fit
from spyre.torch_backend.inductor.scratchpad.greedy import solve_greedy
from spyre.torch_backend.inductor.scratchpad.in_place import in_place_parents
from spyre.torch_backend.inductor.scratchpad.liveness import Buffer, Places, buffer_of
from spyre.torch_backend.inductor.scratchpad.operations import Operations, operations_of
from spyre.torch_backend.inductor.scratchpad.optimal import solve_optimal

Value = TypeVar("Value")
Solver = Callable[[Sequence[Buffer], int], dict[str, int | None]]

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

    buffers: tuple[Buffer, ...]
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
    specs: Sequence[Spec],
    names: Sequence[Sequence[str]],
    *,
    surroundings: Surroundings = NO_SURROUNDINGS,
    rule: str = "june",
    solver: str = "greedy",
    capacity_bytes: int | None = None,
) -> ScratchpadPlan:
    """Places in LX for the intermediate results of a kernel whose work is divided already.

    ``specs``: the operations in the order they run; those of several kernels may follow one
    another, since LX keeps its contents between launches. ``names``: a name per tensor, as in
    `operations_of`. ``rule``: of `OPERATIONS`. ``solver``: of `SOLVERS`. ``capacity_bytes`` of one
    core; None: `lx_capacity_bytes`. LaunchError SPY985 for unknown names, BundleError SPY988.
    """
    chosen = _known("solver", solver, SOLVERS)
    operations = operations_of(specs, names)
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
    operations: Operations, *, surroundings: Surroundings = NO_SURROUNDINGS, rule: str = "june"
) -> tuple[tuple[Buffer, ...], dict[str, str]]:
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
