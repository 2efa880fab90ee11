"""Contiguous runs of operations on spyre, which become bundles, and the lanes of their buffers.

The scheduler makes bundles of the same runs, unless it moves operations. Then a layout chosen for
another run may cost one more restickify, but results stay right.

Layout propagation goes through a run operation by operation. Inputs have the default layout, a
result has the lane that `Lowering` derives from its operands, and a buffer that is read outside
of its bundle has the default layout again. Every ComputedBuffer on spyre gets a FixedTiledLayout;
`restickify` chooses better ones for the graph as a whole. An operation whose operands pitches
cannot describe keeps its layout, and later operations of the run read its result in the default
layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import msgspec

from spyre.torch_backend.inductor.base.compat import clear_caches, ir
from spyre.torch_backend.inductor.base.layouts import (
    FixedTiledLayout,
    HostBuffer,
    argument_view,
    strided_view,
    with_lane_layout,
)
from spyre.torch_backend.inductor.kernel.builder import SpyreKernel, target_of
from spyre.torch_backend.inductor.lowering.device_ir import Body, body_of
from spyre.torch_backend.program import LoweringError, Value


class RunOperation(msgspec.Struct, frozen=True, dict=True):
    """An operation of a run, and its body."""

    operation: Any
    body: Body

    @cached_property
    def name(self) -> str:
        """The name of its buffer."""
        return str(self.operation.get_name())

    @cached_property
    def target(self) -> str:
        """The buffer it writes: its result, or the buffer it mutates."""
        return target_of(self.operation)

    @property
    def mutates(self) -> bool:
        """True if it writes into an existing buffer."""
        return self.target != self.name


class OperationRun(msgspec.Struct, frozen=True):
    """``steps`` in order; ``results``: names of buffers that are read outside of the run.

    ``buffers``: all buffers that are read or written, in their layouts outside of kernels.
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
    """The runs of a graph, without operations of symbolic sizes or unknown bodies."""
    outputs = set(graph.get_output_names())
    groups = list(_groups(graph.operations))
    readers = _readers(graph.operations, groups)
    return [_run(graph, k, group, readers, outputs) for k, group in enumerate(groups)]


def _groups(operations: Sequence[Any]) -> Iterator[list[RunOperation]]:
    for is_run, run in groupby(map(_run_operation, operations), lambda step: step is not None):
        if is_run:
            yield [step for step in run if step is not None]


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
    """Numbers of the groups that read each buffer; -1 for a reader in no group."""
    readers: dict[str, set[int]] = {}
    grouped: set[int] = set()
    for number, group in enumerate(groups):
        for step in group:
            grouped.add(id(step.operation))
            for load in step.body.loads:
                readers.setdefault(load.buffer, set()).add(number)
    # Inductor traces an operation for its reads, again after each change of its layout.
    for operation in operations:
        if id(operation) not in grouped:
            for dep in operation.get_read_writes().reads:
                readers.setdefault(dep.name, set()).add(-1)
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
    """A buffer or an input of the graph; only inputs may have a layout that is not the default."""
    given = graph.graph_inputs.get(name)
    layout = (given or graph.get_buffer(name)).get_layout()
    wanted = layout.device_layout if given and isinstance(layout, FixedTiledLayout) else None
    sizes, strides = (tuple(int(n) for n in row) for row in (layout.size, layout.stride))
    return HostBuffer(sizes, strides, str(layout.dtype).removeprefix("torch."), wanted)


def remove_dead_code(graph: Any) -> None:
    """Remove computed buffers on spyre that are neither outputs nor read by another operation.

    Operations that write into an existing buffer stay.
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


PROPAGATED_KERNELS = "spyre_kernels"
"""Attribute of a graph: the kernels that layout propagation made of its runs."""
PROPAGATED_LANES = "own_lanes"
"""Attribute of an operation whose lanes were propagated: the lanes before placement, -1 for none,
of its result and, in their own dims, of its operands (none for later results of a program).

The rounding of sums depends on the lane, so placement must not change those of a reduction.
"""


def propagate_layouts(graph: Any) -> None:
    """Give every ComputedBuffer of every run a FixedTiledLayout."""
    setattr(graph, PROPAGATED_KERNELS, [_propagate(run) for run in runs_of(graph)])


def _propagate(run: OperationRun) -> SpyreKernel:
    kernel = SpyreKernel(run.buffers, sorted(run.results))
    for step in run.steps:
        try:
            own = kernel.propagate(step.operation, step.body)
        except LoweringError:
            continue
        setattr(step.operation, PROPAGATED_LANES, own)
        set_lane(run, step.operation, own[0])
    return kernel


def set_lane(run: OperationRun, operation: Any, lane: int) -> None:
    """Set the lane of an operation's buffer; one read outside of the run has its memory's lane."""
    if isinstance(operation.layout, ir.MutationLayoutSHOULDREMOVE):
        return
    name = operation.get_name()
    if name in run.results:
        lane = memory_lane(run, name)
    operation.layout = with_lane_layout(operation.layout, lane)
    clear_caches(operation)


def memory_lane(run: OperationRun, name: str) -> int:
    """The lane of a buffer outside of kernels, as a dim of the buffer; -1 for none."""
    buffer = run.buffers[name]
    view = argument_view(name, buffer)
    seen = strided_view(Value(view, buffer.dtype, 0), buffer.sizes, buffer.strides, 0)
    return -1 if seen is None else seen.lane_dim
