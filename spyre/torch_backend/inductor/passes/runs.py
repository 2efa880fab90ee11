"""Contiguous runs of operations on spyre: what will be one bundle, and what leaves it.

The scheduler makes bundles later, of the same runs unless it moves operations; a layout that was
chosen for another run costs a restickify more, never a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spyre.torch_backend.inductor.body import Body, body_of
from spyre.torch_backend.inductor.compat import ir
from spyre.torch_backend.inductor.finished_kernel import HostBuffer
from spyre.torch_backend.inductor.kernel import target_of
from spyre.torch_backend.program.value import NotExpressible


@dataclass(frozen=True, slots=True)
class Step:
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
class Run:
    """``steps`` in order; ``results``: names of buffers that something outside of the run reads.

    ``buffers``: all buffers that are read or written, as the runtime sees them.
    """

    steps: tuple[Step, ...]
    results: frozenset[str]
    buffers: dict[str, HostBuffer]


def is_computed(operation: Any) -> bool:
    """True for an operation whose body is computed on the card."""
    if not isinstance(operation, ir.ComputedBuffer):
        return False
    device = operation.get_device()
    return device is not None and device.type == "spyre"


def runs_of(graph: Any) -> list[Run]:
    """The runs of a graph; operations whose bodies or sizes are no numbers are in none."""
    outputs = set(graph.get_output_names())
    groups = list(_groups(graph.operations))
    readers = _readers(graph.operations, groups)
    return [_run(graph, k, group, readers, outputs) for k, group in enumerate(groups)]


def _groups(operations: Sequence[Any]) -> Iterator[list[Step]]:
    group: list[Step] = []
    for operation in operations:
        step = _step(operation)
        if step is not None:
            group.append(step)
        elif group:
            yield group
            group = []
    if group:
        yield group


def _step(operation: Any) -> Step | None:
    if not is_computed(operation):
        return None
    try:
        return Step(operation, body_of(operation))
    except (NotExpressible, TypeError):
        return None


def _readers(operations: Sequence[Any], groups: Sequence[Sequence[Step]]) -> dict[str, set[int]]:
    """Numbers of the groups that read a buffer; -1: something in none."""
    number = {id(step.operation): k for k, group in enumerate(groups) for step in group}
    found: dict[str, set[int]] = {}
    for operation in operations:
        for dep in operation.get_read_writes().reads:
            found.setdefault(dep.name, set()).add(number.get(id(operation), -1))
    return found


def _run(
    graph: Any, number: int, steps: Sequence[Step], readers: dict[str, set[int]], outputs: set[str]
) -> Run:
    made = {step.name for step in steps}
    left = {name for name in made if name in outputs or readers.get(name, set()) - {number}}
    left |= {step.target for step in steps if step.mutates}
    names = made | left | {load.buffer for step in steps for load in step.body.loads}
    return Run(tuple(steps), frozenset(left), {name: host_buffer(graph, name) for name in names})


def host_buffer(graph: Any, name: str) -> HostBuffer:
    """A buffer of the graph or one of its inputs."""
    buffer = graph.graph_inputs.get(name) or graph.get_buffer(name)
    layout = buffer.get_layout()
    sizes, strides = (tuple(int(n) for n in row) for row in (layout.size, layout.stride))
    return HostBuffer(sizes, strides, str(layout.dtype).removeprefix("torch."))
