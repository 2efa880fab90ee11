"""The graph of a run for `place_restickifies`, and the moves that each use would cost.

Lane constraints. Pointwise: operands use the result's lane, or one element per stick if they lack
that dim. Matmul: K and N. Reductions and programs: operands keep their propagated lane, since the
order of summation depends on it. Buffers outside of the run have the default layout, so a result
that leaves the run has one more reader, its memory. Results with one element per stick are charged
for the elements that they hold beyond those of full sticks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from spyre.layout import contiguous_strides
from spyre.torch_backend.inductor.base.layouts import lane_of
from spyre.torch_backend.inductor.kernel.operands import (
    OperandRead,
    argument_view,
    reads_of,
    storage_order,
    strided_view,
)
from spyre.torch_backend.inductor.lowering.device_ir import Load
from spyre.torch_backend.inductor.passes.placement import (
    SPARSE,
    LaneNode,
    LaneUse,
    LaneValue,
    NodeKind,
    device_elements,
)
from spyre.torch_backend.inductor.passes.runs import (
    PROPAGATED_LANES,
    OperationRun,
    PropagatedLanes,
    RunOperation,
    memory_lane,
)
from spyre.torch_backend.program import Ints, OpKind, ProgramBuilder, Value, op_spec as program

MOST_GROWTH = 2
"""Maximum growth of a result's memory by another lane than the propagated one."""

Lanes = tuple[int, int]
"""A producer's lane and its consumer's."""


@dataclass(frozen=True, slots=True)
class StickGraph:
    """``nodes``, ``edges``, ``inputs``: for `place_restickifies`. ``moves``: the restickifies of a
    use, by consumer, number of the load, and lanes; None if the kernel has to spread the operand.
    ``sizes``: of every buffer, in the row-major order of its elements.
    """

    nodes: tuple[LaneNode, ...]
    edges: tuple[LaneUse, ...]
    inputs: tuple[LaneValue, ...]
    moves: Mapping[tuple[str, int], Mapping[Lanes, Moves | None]]
    sizes: Mapping[str, Ints]


def in_memory(name: str) -> str:
    """The name of the node for the memory of a buffer that leaves its run."""
    return f"memory of {name}"


def stick_graph(run: OperationRun) -> StickGraph:
    """The graph of a run whose layouts are propagated. LoweringError for an unusual input."""
    return _StickGraphBuilder(run).made()


class _StickGraphBuilder:
    def __init__(self, run: OperationRun) -> None:
        self.run = run
        self.values: dict[str, dict[int, program.Value]] = {}
        self.nodes: list[LaneNode] = []
        self.edges: list[LaneUse] = []
        self.inputs: list[LaneValue] = []
        self.moves: dict[tuple[str, int], dict[Lanes, Moves | None]] = {}

    def made(self) -> StickGraph:
        for step in self.run.steps:
            self._add(step)
        sizes = {name: next(iter(by_lane.values())).sizes for name, by_lane in self.values.items()}
        nodes, edges, inputs = tuple(self.nodes), tuple(self.edges), tuple(self.inputs)
        return StickGraph(nodes, edges, inputs, self.moves, sizes)

    def _add(self, step: RunOperation) -> None:
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
        self.nodes.append(LaneNode(value, NodeKind.ALL_SAME, work))
        order = storage_order(self.run.buffers[step.name].strides)
        held = {k: laid_out(body.ranges, body.dtype, k).permuted(order) for k in lanes}
        self.values[step.name] = held
        if step.mutates:
            self._from_outside(step.target)
        elif step.name in self.run.results and has_free_lane(step):
            self._memory(step, value)
        elif step.name in self.run.results:
            self.values[step.name] = {lanes[0]: self._outside(step.name)}

    def _known(self, read: OperandRead) -> str:
        """The operand's producer, added as an input if it is outside of the run."""
        assert isinstance(read.operand, Load)
        self._from_outside(read.operand.buffer)
        return read.operand.buffer

    def _from_outside(self, name: str) -> None:
        """Add an input for memory written outside of the run, or by an operation in place."""
        if name in self.values:
            return
        value = self._outside(name)
        lanes = (value.lane_dim,)
        self.values[name] = {value.lane_dim: value}
        self.inputs.append(_placement_value(name, value.sizes, value.dtype, lanes))

    def _outside(self, name: str) -> program.Value:
        buffer = self.run.buffers[name]
        view = argument_view(name, buffer)
        return program.Value(view, buffer.dtype, 0)

    def _edge(self, step: RunOperation, number: int, read: OperandRead, lanes: Ints) -> None:
        producer = self._known(read)
        moves = {
            (have, own): moves_for(value, read, wanted_lanes(step, number, read.sizes, own))
            for have, value in self.values[producer].items()
            for own in lanes
        }
        costs = tuple(
            tuple(float(cost_of(moves[have, own])) for own in lanes)
            for have in self.values[producer]
        )
        self.moves[step.name, number] = moves
        self.edges.append(LaneUse(producer, step.name, number, costs=costs))

    def _memory(self, step: RunOperation, value: LaneValue) -> None:
        lane = memory_lane(self.run, step.name)
        name = in_memory(step.name)
        memory = _placement_value(name, step.body.ranges, step.body.dtype, (lane,))
        costs = tuple(
            (0.0 if own == lane else float(Move(True, lane, elements).cost),)
            for own, elements in zip(value.lanes, value.elements, strict=True)
        )
        self.nodes.append(LaneNode(memory, NodeKind.ANY_IN))
        self.edges.append(LaneUse(step.name, name, 0, costs=costs))


def has_free_lane(step: RunOperation) -> bool:
    """Whether placement may choose the lane of an operation: it has a new, dense buffer with a
    propagated layout.
    """
    if step.mutates:
        return False
    layout, sizes = step.operation.layout, step.body.ranges
    strides = tuple(map(int, layout.stride))
    order = [k for k in storage_order(strides) if sizes[k] > 1]
    dense = contiguous_strides([sizes[k] for k in order]) == tuple(strides[k] for k in order)
    return dense and lane_of(layout) is not None


def _placement_value(name: str, sizes: Ints, dtype: str, lanes: Ints) -> LaneValue:
    per_stick = _per_stick(dtype)
    return LaneValue(name, lanes, tuple(device_elements(sizes, k, per_stick) for k in lanes))


def _per_stick(dtype: str) -> int:
    return laid_out((), dtype, SPARSE).view.elements_per_stick


def _candidates(step: RunOperation) -> Ints:
    """Lanes that the result may have, the propagated one first."""
    known, sizes = propagated_lanes(step), step.body.ranges
    if known is None:
        return (_last(sizes),)
    own = known.result
    kind = step.body.operation.kind
    if kind is not OpKind.POINTWISE or not has_free_lane(step):
        return (own,)
    return (own, *_others(sizes, own, step.body.dtype))


def propagated_lanes(step: RunOperation) -> PropagatedLanes | None:
    """The result of layout propagation, None if it failed for the operation."""
    lanes: PropagatedLanes | None = getattr(step.operation, PROPAGATED_LANES, None)
    return lanes


def _others(sizes: Ints, own: int, dtype: str) -> Iterator[int]:
    per_stick = _per_stick(dtype)
    most = MOST_GROWTH * device_elements(sizes, own, per_stick)
    for k, n in enumerate(sizes):
        if n > 1 and k != own and device_elements(sizes, k, per_stick) <= most:
            yield k


def _last(sizes: Ints) -> int:
    return max((k for k, n in enumerate(sizes) if n > 1), default=SPARSE)


def wanted_lanes(step: RunOperation, number: int, sizes: Ints, own: int) -> Ints:
    """Lanes that load ``number``, of ``sizes``, may have if the result has lane ``own``."""
    operation = step.body.operation
    if operation.program is not None or operation.kind is OpKind.REDUCTION:
        known = propagated_lanes(step)
        fixed = known.operands[number : number + 1] if known else ()
        return fixed or tuple(range(SPARSE, len(sizes)))
    lane = len(sizes) - 1 if operation.kind is OpKind.MATMUL else own
    return (lane if lane >= 0 and sizes[lane] > 1 else SPARSE,)


OVERHEAD = 1 << 18
"""Fixed cost of a restickify, in elements. It minimises the number of restickifies for tensors up
to half a MiB, and the bytes moved for larger ones.
"""
HARD = 3 * OVERHEAD
"""Cost of an operand that the kernel has to spread."""


@dataclass(frozen=True, slots=True)
class Move:
    """A restickify of the ``whole`` producer, to a lane in its dims, or of the operand's view only,
    to a lane in the dims of the operand. ``elements``: moved ones, stick padding included.
    """

    whole: bool
    lane: int
    elements: int

    @property
    def cost(self) -> int:
        """Elements moved plus the fixed cost."""
        return self.elements + OVERHEAD


Moves = tuple[Move, ...]


def cost_of(moves: Moves | None) -> int:
    """The total cost of moves; None: the kernel has to spread the operand."""
    return HARD if moves is None else sum(move.cost for move in moves)


@lru_cache(maxsize=4096)
def laid_out(sizes: Ints, dtype: str, lane: int) -> Value:
    """A fresh value of ``sizes`` with sticks along ``lane``."""
    return ProgramBuilder().scratch(sizes, dtype, lane)


def moves_for(value: Value, read: OperandRead, wanted: Collection[int]) -> Moves | None:
    """The cheapest restickifies that let ``value`` be read with sticks along a dim of ``wanted``.

    ``wanted``: lanes in the dims of the operand, `SPARSE` for sticks of one element; moves of the
    operand go to the first one. None if neither one nor two restickifies suffice.
    """
    view = _read_view(value, read)
    if view is not None and view.lane_dim in wanted:
        return ()
    options = list(_after_whole(value, read, wanted))
    if view is not None:
        options.append((_view_move(view, wanted),))
    return min(options, key=cost_of, default=None)


def _after_whole(value: Value, read: OperandRead, wanted: Collection[int]) -> list[Moves]:
    """Sequences of moves that begin with one of all of ``value``."""
    options: list[Moves] = []
    for lane in _other_lanes(value):
        view = _read_view(laid_out(value.sizes, value.dtype, lane), read)
        if view is None:
            continue
        first = Move(True, lane, _elements(value))
        if view.lane_dim in wanted:
            options.append((first,))
        else:
            options.append((first, _view_move(view, wanted)))
    return options


def _other_lanes(value: Value) -> list[int]:
    lanes = [k for k, n in enumerate(value.sizes) if n > 1]
    return [k for k in (*lanes, SPARSE) if k != value.lane_dim]


def _view_move(value: Value, wanted: Collection[int]) -> Move:
    return Move(False, next(iter(wanted)), _elements(value))


def _elements(value: Value) -> int:
    return device_elements(value.sizes, value.lane_dim, value.view.elements_per_stick)


def _read_view(value: Value, read: OperandRead) -> Value | None:
    """The view that a load reads of ``value``; None if the cores cannot walk it."""
    load = read.operand
    assert isinstance(load, Load)
    view = strided_view(value, read.sizes, load.strides, load.offset)
    return None if view is None or _is_in_pieces(view) else view


def _is_in_pieces(value: Value) -> bool:
    """Whether a dim along the lanes continues in another stick before one is full."""
    lanes = value.view.elements_per_stick
    for factors in value.view.dims:
        if any(factor.lane for factor in factors[:-1]):
            return True
        if len(factors) > 1 and factors[-1].lane and factors[-1].extent % lanes:
            return True
    return False
