"""A run of operations as the graph that restickifies are placed in.

Where an operation's operands have to have their lanes: pointwise ones where the result has them (or
one element per stick, along dims they do not have); a matmul's along K and N; those of a reduction
or a program where they are by themselves, as sums round according to the lane. Buffers outside of
the run are in the default layout, so a result that leaves it is read once more, by its *memory*.
Results of one element per stick also count what they hold more than full sticks would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spyre.layout import contiguous_strides
from spyre.torch_backend.inductor.body import Load
from spyre.torch_backend.inductor.lane_graph import (
    SPARSE,
    Edge,
    Node,
    NodeKind,
    Value,
    device_elements,
)
from spyre.torch_backend.inductor.layouts import lane_of
from spyre.torch_backend.inductor.operand_views import (
    Read,
    argument_view,
    reads_of,
    storage_order,
)
from spyre.torch_backend.inductor.passes.moves import Move, Moves, cost_of, laid_out, moves_for
from spyre.torch_backend.inductor.passes.propagate_layouts import OWN_LANES, OwnLanes, memory_lane
from spyre.torch_backend.inductor.passes.runs import Run, Step
from spyre.torch_backend.program import value as program
from spyre.torch_backend.program.op_spec import OpKind
from spyre.torch_backend.program.value import Ints

MOST_GROWTH = 2
"""Lanes that make a result larger than this times what it is by itself are not tried."""

Lanes = tuple[int, int]
"""A producer's lane and its consumer's."""


@dataclass(frozen=True, slots=True)
class StickGraph:
    """``nodes``, ``edges``, ``inputs``: for `place_restickifies`. ``moves``: by consumer, number of
    the load, and lanes: what is moved for it, None where the kernel has to find a way.
    ``sizes``: of every buffer, as its elements lie in row-major order.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    inputs: tuple[Value, ...]
    moves: Mapping[tuple[str, int], Mapping[Lanes, Moves | None]]
    sizes: Mapping[str, Ints]


def in_memory(name: str) -> str:
    """The node that stands for the memory of a buffer that leaves its run."""
    return f"memory of {name}"


def stick_graph(run: Run) -> StickGraph:
    """The graph of a run whose layouts are propagated. NotExpressible for an unusual input."""
    return _Maker(run).made()


class _Maker:
    def __init__(self, run: Run) -> None:
        self.run = run
        self.values: dict[str, dict[int, program.Value]] = {}
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.inputs: list[Value] = []
        self.moves: dict[tuple[str, int], dict[Lanes, Moves | None]] = {}

    def made(self) -> StickGraph:
        for step in self.run.steps:
            self._add(step)
        sizes = {name: next(iter(found.values())).sizes for name, found in self.values.items()}
        nodes, edges, inputs = tuple(self.nodes), tuple(self.edges), tuple(self.inputs)
        return StickGraph(nodes, edges, inputs, self.moves, sizes)

    def _add(self, step: Step) -> None:
        reads = [read for read in reads_of(step.body) if isinstance(read.operand, Load)]
        lanes = _candidates(step)
        for number, read in enumerate(reads):
            self._edge(step, number, read, lanes)
        body = step.body
        value = _placement_value(step.name, body.ranges, body.dtype, lanes)
        fewest = min(value.elements)
        work = tuple(
            n - fewest if lane == SPARSE else 0
            for lane, n in zip(value.lanes, value.elements, strict=True)
        )
        self.nodes.append(Node(value, NodeKind.ALL_SAME, work))
        order = storage_order(self.run.buffers[step.name].strides)
        held = {k: laid_out(body.ranges, body.dtype, k).permuted(order) for k in lanes}
        self.values[step.name] = held
        if step.mutates:
            self._from_outside(step.target)
        elif step.name in self.run.results and can_be_led(step):
            self._memory(step, value)
        elif step.name in self.run.results:
            self.values[step.name] = {lanes[0]: self._outside(step.name)}

    def _known(self, read: Read) -> str:
        """The operand's producer, an input if it comes from outside."""
        assert isinstance(read.operand, Load)
        self._from_outside(read.operand.buffer)
        return read.operand.buffer

    def _from_outside(self, name: str) -> None:
        """Make an input of memory that others wrote, or an operation in place."""
        if name in self.values:
            return
        value = self._outside(name)
        lanes = (value.lane_dim,)
        self.values[name] = {value.lane_dim: value}
        self.inputs.append(_placement_value(name, value.sizes, value.dtype, lanes))

    def _outside(self, name: str) -> program.Value:
        buffer = self.run.buffers[name]
        view = argument_view(name, buffer.sizes, buffer.strides, buffer.dtype)
        return program.Value(view, buffer.dtype, 0)

    def _edge(self, step: Step, number: int, read: Read, lanes: Ints) -> None:
        producer = self._known(read)
        found = {
            (have, own): moves_for(value, read, wanted_lanes(step, number, read.sizes, own))
            for have, value in self.values[producer].items()
            for own in lanes
        }
        costs = tuple(
            tuple(float(cost_of(found[have, own])) for own in lanes)
            for have in self.values[producer]
        )
        self.moves[step.name, number] = found
        self.edges.append(Edge(producer, step.name, number, costs=costs))

    def _memory(self, step: Step, value: Value) -> None:
        lane = memory_lane(self.run, step.name)
        name = in_memory(step.name)
        memory = _placement_value(name, step.body.ranges, step.body.dtype, (lane,))
        costs = tuple(
            (0.0 if own == lane else float(Move(True, lane, elements).cost),)
            for own, elements in zip(value.lanes, value.elements, strict=True)
        )
        self.nodes.append(Node(memory, NodeKind.ANY_IN))
        self.edges.append(Edge(step.name, name, 0, costs=costs))


def can_be_led(step: Step) -> bool:
    """True for operations whose lane is chosen here: others write into memory that is there, or
    need operands that the kernel spreads out. Their elements lie densely, in any order of dims.
    """
    if step.mutates:
        return False
    layout, sizes = step.operation.layout, step.body.ranges
    strides = tuple(map(int, layout.stride))
    order = [k for k in storage_order(strides) if sizes[k] > 1]
    dense = contiguous_strides([sizes[k] for k in order]) == tuple(strides[k] for k in order)
    return dense and lane_of(layout) is not None


def _placement_value(name: str, sizes: Ints, dtype: str, lanes: Ints) -> Value:
    per_stick = _per_stick(dtype)
    return Value(name, lanes, tuple(device_elements(sizes, k, per_stick) for k in lanes))


def _per_stick(dtype: str) -> int:
    return laid_out((), dtype, SPARSE).view.elements_per_stick


def _candidates(step: Step) -> Ints:
    """Lanes the result may have, first the one it has by itself."""
    known, sizes = own_lanes(step), step.body.ranges
    if known is None:
        return (_last(sizes),)
    own = known.result
    kind = step.body.operation.kind
    if kind is not OpKind.POINTWISE or not can_be_led(step):
        return (own,)
    return (own, *_others(sizes, own, step.body.dtype))


def own_lanes(step: Step) -> OwnLanes | None:
    """What layout propagation found out, if it got through the operation."""
    found: OwnLanes | None = getattr(step.operation, OWN_LANES, None)
    return found


def _others(sizes: Ints, own: int, dtype: str) -> Iterator[int]:
    per_stick = _per_stick(dtype)
    most = MOST_GROWTH * device_elements(sizes, own, per_stick)
    for k, n in enumerate(sizes):
        if n > 1 and k != own and device_elements(sizes, k, per_stick) <= most:
            yield k


def _last(sizes: Ints) -> int:
    return max((k for k, n in enumerate(sizes) if n > 1), default=SPARSE)


def wanted_lanes(step: Step, number: int, sizes: Ints, own: int) -> Ints:
    """Lanes that load ``number``, of ``sizes``, may have for a result with lane ``own``."""
    operation = step.body.operation
    if operation.program is not None or operation.kind is OpKind.REDUCTION:
        known = own_lanes(step)
        fixed = known.operands[number : number + 1] if known else ()
        return fixed or tuple(range(SPARSE, len(sizes)))
    lane = len(sizes) - 1 if operation.kind is OpKind.MATMUL else own
    return (lane if lane >= 0 and sizes[lane] > 1 else SPARSE,)
