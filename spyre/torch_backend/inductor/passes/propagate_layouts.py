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
from spyre.torch_backend.inductor.restickify_placement import SPARSE
from spyre.torch_backend.program.op_spec import OpKind
from spyre.torch_backend.program.value import NotExpressible, Value

OWN_LANES = "own_lanes"
"""Attribute of an operation whose lanes were propagated."""


@dataclass(frozen=True, slots=True)
class OwnLanes:
    """Lanes that nobody chose, -1 for none: of the ``result``, and of a reduction's ``operand``.

    Sums round according to where the lanes are, so that whoever moves lanes leaves a reduction's.
    """

    result: int
    operand: int


def propagate_layouts(graph: Any) -> None:
    """Give every ComputedBuffer of every run a FixedTiledLayout."""
    for run in runs_of(graph):
        _propagate(run)


def _propagate(run: Run) -> None:
    kernel = SpyreKernel(run.buffers, sorted(run.results))
    for step in run.steps:
        try:
            lane = kernel.propagated(step.target, step.body).lane_dim
        except NotExpressible:
            continue
        is_reduction = step.body.operation.kind is OpKind.REDUCTION
        operand = _reduced_lane(kernel) if is_reduction else SPARSE
        setattr(step.operation, OWN_LANES, OwnLanes(lane, operand))
        set_lane(run, step.operation, lane)


def _reduced_lane(kernel: SpyreKernel) -> int:
    reductions = (s for s in reversed(kernel.low.builder.specs) if s.kind is OpKind.REDUCTION)
    return next(reductions).inputs[0].lane_dim


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
