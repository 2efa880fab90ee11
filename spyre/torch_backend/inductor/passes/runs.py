"""Contiguous runs of operations on spyre: what will be one bundle, and the lanes of its buffers.

The scheduler makes bundles later, of the same runs unless it moves operations; a layout that was
chosen for another run costs a restickify more, never a result.

Layout propagation goes through a run operation by operation. Inputs have the default layout; a
result has its sticks where its operands have them (`Operations`), and a buffer that is read outside
of its bundle has the default layout again. Every ComputedBuffer on spyre gets a FixedTiledLayout;
`restickify` chooses better ones for the graph as a whole. An operation whose operands no pitches
describe keeps the layout it has, and the ones after it in its run begin with that one in the
default layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spyre.torch_backend.inductor.base import (
    FixedTiledLayout,
    clear_caches,
    ir,
    with_lane_layout,
)
from spyre.torch_backend.inductor.kernel import (
    HostBuffer,
    SpyreKernel,
    argument_view,
    strided_view,
    target_of,
)
from spyre.torch_backend.inductor.lowering import Body, body_of
from spyre.torch_backend.program import Ints, LoweringError, Value


@dataclass(frozen=True, slots=True)
class RunOperation:
    """An operation of a run, and what it does."""

    operation: Any
    body: Body

    @property
    def name(self) -> str:
        """The name of its buffer."""
        return str(self.operation.get_name())

    @property
    def target(self) -> str:
        """The buffer it writes: its own, or the one it mutates."""
        return target_of(self.operation)

    @property
    def mutates(self) -> bool:
        """True if it writes into a buffer that is there."""
        return self.target != self.name


@dataclass(frozen=True, slots=True)
class OperationRun:
    """``steps`` in order; ``results``: names of buffers that something outside of the run reads.

    ``buffers``: all buffers that are read or written, as the runtime sees them.
    """

    steps: tuple[RunOperation, ...]
    results: frozenset[str]
    buffers: dict[str, HostBuffer]


def is_computed(operation: Any) -> bool:
    """True for an operation whose body is computed on the card."""
    if not isinstance(operation, ir.ComputedBuffer):
        return False
    device = operation.get_device()
    return device is not None and device.type == "spyre"


def runs_of(graph: Any) -> list[OperationRun]:
    """The runs of a graph; operations whose bodies or sizes are no numbers are in none."""
    outputs = set(graph.get_output_names())
    groups = list(_groups(graph.operations))
    readers = _readers(graph.operations, groups)
    return [_run(graph, k, group, readers, outputs) for k, group in enumerate(groups)]


def _groups(operations: Sequence[Any]) -> Iterator[list[RunOperation]]:
    group: list[RunOperation] = []
    for operation in operations:
        step = _run_operation(operation)
        if step is not None:
            group.append(step)
        elif group:
            yield group
            group = []
    if group:
        yield group


def _run_operation(operation: Any) -> RunOperation | None:
    if not is_computed(operation):
        return None
    try:
        return RunOperation(operation, body_of(operation))
    except (LoweringError, TypeError):
        return None


def _readers(
    operations: Sequence[Any], groups: Sequence[Sequence[RunOperation]]
) -> dict[str, set[int]]:
    """Numbers of the groups that read a buffer; -1: something in none."""
    number = {id(step.operation): k for k, group in enumerate(groups) for step in group}
    readers: dict[str, set[int]] = {}
    for operation in operations:
        for dep in operation.get_read_writes().reads:
            readers.setdefault(dep.name, set()).add(number.get(id(operation), -1))
    return readers


def _run(
    graph: Any,
    number: int,
    steps: Sequence[RunOperation],
    readers: dict[str, set[int]],
    outputs: set[str],
) -> OperationRun:
    made = {step.name for step in steps}
    left = {name for name in made if name in outputs or readers.get(name, set()) - {number}}
    left |= {step.target for step in steps if step.mutates}
    names = made | left | {load.buffer for step in steps for load in step.body.loads}
    return OperationRun(
        tuple(steps), frozenset(left), {name: host_buffer(graph, name) for name in names}
    )


def host_buffer(graph: Any, name: str) -> HostBuffer:
    """A buffer of the graph or one of its inputs, which may not lie in the default layout."""
    given = graph.graph_inputs.get(name)
    layout = (given or graph.get_buffer(name)).get_layout()
    wanted = layout.device_layout if given and isinstance(layout, FixedTiledLayout) else None
    sizes, strides = (tuple(int(n) for n in row) for row in (layout.size, layout.stride))
    return HostBuffer(sizes, strides, str(layout.dtype).removeprefix("torch."), wanted)


def remove_dead_code(graph: Any) -> None:
    """Take out computed buffers on spyre that neither an output nor another operation reads.

    What writes into a buffer that is there already stays.
    """
    live = set(graph.get_output_names())
    kept = []
    for operation in reversed(graph.operations):
        dead = is_computed(operation) and operation.get_name() not in live
        if dead and not isinstance(operation.layout, ir.MutationLayoutSHOULDREMOVE):
            graph.removed_buffers.add(operation.get_name())
            continue
        kept.append(operation)
        live |= {dep.name for dep in operation.get_read_writes().reads}
    graph.operations[:] = reversed(kept)


PROPAGATED_LANES = "own_lanes"
"""Attribute of an operation whose lanes were propagated."""


@dataclass(frozen=True, slots=True)
class PropagatedLanes:
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


def _propagate(run: OperationRun) -> None:
    kernel = SpyreKernel(run.buffers, sorted(run.results))
    for step in run.steps:
        try:
            own = PropagatedLanes(*kernel.propagated(step.target, step.body))
        except LoweringError:
            continue
        setattr(step.operation, PROPAGATED_LANES, own)
        set_lane(run, step.operation, own.result)


def set_lane(run: OperationRun, operation: Any, lane: int) -> None:
    """Lay out an operation's buffer along ``lane``, or as the runtime does if it leaves the run."""
    if isinstance(operation.layout, ir.MutationLayoutSHOULDREMOVE):
        return
    name = operation.get_name()
    if name in run.results:
        lane = memory_lane(run, name)
    operation.layout = with_lane_layout(operation.layout, lane)
    clear_caches(operation)


def memory_lane(run: OperationRun, name: str) -> int:
    """The lane of a buffer outside of kernels, a dim of the buffer itself; -1 where it has none."""
    buffer = run.buffers[name]
    view = argument_view(name, buffer)
    seen = strided_view(Value(view, buffer.dtype, 0), buffer.sizes, buffer.strides, 0)
    return -1 if seen is None else seen.lane_dim
