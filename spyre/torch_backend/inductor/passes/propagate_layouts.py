"""Layout propagation: the stick dim of every buffer, operation by operation.

Inputs have the default layout; a result has its sticks where its operands have them
(`Operations`), and a buffer that is read outside of its bundle has the default layout again. Every
ComputedBuffer on spyre gets a FixedTiledLayout; `restickify` chooses better ones for the graph as a
whole. An operation whose operands no pitches describe keeps the layout it has, and the ones after
it in its run begin with that one in the default layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spyre.torch_backend.inductor.compat import clear_caches, ir
from spyre.torch_backend.inductor.kernel import SpyreKernel
from spyre.torch_backend.inductor.layouts import tiled
from spyre.torch_backend.inductor.operand_views import argument_view, seen
from spyre.torch_backend.inductor.passes.runs import Run, runs_of
from spyre.torch_backend.program.value import Ints, NotExpressible, Value

OWN_LANES = "own_lanes"
"""Attribute of an operation whose lanes were propagated."""


@dataclass(frozen=True, slots=True)
class OwnLanes:
    """Lanes that nobody chose, -1 for none: of the ``result`` and, in their own dims, of the
    ``operands``; none of these where the operation reads nothing itself.

    Sums round according to where the lanes are, so that whoever moves lanes leaves a reduction's.
    """

    result: int
    operands: Ints


def propagate_layouts(graph: Any) -> None:
    """Give every ComputedBuffer of every run a FixedTiledLayout."""
    for run in runs_of(graph):
        _propagate(run)


def _propagate(run: Run) -> None:
    kernel = SpyreKernel(run.buffers, sorted(run.results))
    for step in run.steps:
        try:
            own = OwnLanes(*kernel.propagated(step.target, step.body))
        except NotExpressible:
            continue
        setattr(step.operation, OWN_LANES, own)
        set_lane(run, step.operation, own.result)


def set_lane(run: Run, operation: Any, lane: int) -> None:
    """Lay out an operation's buffer along ``lane``, or as the runtime does if it leaves the run."""
    if isinstance(operation.layout, ir.MutationLayoutSHOULDREMOVE):
        return
    name = operation.get_name()
    if name in run.results:
        lane = memory_lane(run, name)
    operation.layout = tiled(operation.layout, lane)
    clear_caches(operation)


def memory_lane(run: Run, name: str) -> int:
    """The lane of a buffer outside of kernels, a dim of the buffer itself; -1 where it has none."""
    buffer = run.buffers[name]
    view = argument_view(name, buffer.sizes, buffer.strides, buffer.dtype)
    found = seen(Value(view, buffer.dtype, 0), buffer.sizes, buffer.strides, 0)
    return -1 if found is None else found.lane_dim
