"""The `restickify` pass: chooses lanes for whole runs, and inserts the copies that they require.

`place_restickifies` searches over all operations of a run (or greedily, with
``GLOBAL_STICK_OPTIMIZER=0``). The chosen lanes become the layouts of the buffers, and each
restickify becomes a `ReStickifyOpHBM` operation, shared by all readers of the same copy.

A layout is represented by its lane: the host dim along sticks, or `SPARSE` for one element per
stick. An operation reads its inputs with sticks along the dims that its output has sticks along; an
input in another layout is restickified first, which moves all of its elements. `stick_graph`
collects the lanes that results may have and the cost of each use; `place_restickifies` searches
for the cheapest choice (hardware reference §4.5).

Lane constraints. Pointwise: operands use the result's lane, or one element per stick if they lack
that dim. Matmul: K and N. Reductions and programs: operands keep their propagated lane, since the
order of summation depends on it. Buffers outside of the run have the default layout, so a result
that leaves the run has one more reader, its memory. Results with one element per stick are charged
for the elements that they hold beyond those of full sticks.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre import config
from spyre.layout import contiguous_strides
from spyre.torch_backend.inductor.base.compat import clear_caches, ir, ops
from spyre.torch_backend.inductor.base.layouts import (
    argument_view,
    lane_of,
    storage_order,
    strided_view,
    with_lane_layout,
)
from spyre.torch_backend.inductor.lowering.device_ir import (
    DEVICE_OPERATION,
    DeviceOperation,
    Load,
    OperandRead,
    reads_of,
)
from spyre.torch_backend.inductor.passes.runs import (
    PROPAGATED_LANES,
    OperationRun,
    RunOperation,
    memory_lane,
    runs_of,
    set_lane,
)
from spyre.torch_backend.inductor.tiling.full_buffers import LoadAt, change_loads, register
from spyre.torch_backend.program import Ints, LoweringError, OpKind, ProgramBuilder, Value

# --- the search -----------------------------------------------------------------------------------

SPARSE = -1
"""The lane of a value with one element per stick, such as a sum over sticks."""


class LaneNode(msgspec.Struct, frozen=True):
    """An operation and the ``lanes`` that its result may have, preferred ones first.

    ``work``: per lane, elements computed beyond the minimum; empty: none.
    """

    name: str
    lanes: tuple[int, ...]
    work: tuple[int, ...] = ()


class LaneUse(msgspec.Struct, frozen=True):
    """One operand of ``consumer``. ``costs``: elements to move, [producer's lane, consumer's].

    A ``producer`` that is no node has one lane, so one row of costs.
    """

    producer: str
    consumer: str
    costs: tuple[tuple[float, ...], ...]


def device_elements(sizes: Sequence[int], lane: int, elements_per_stick: int) -> int:
    """Elements in memory of a value of ``sizes`` with sticks along ``lane``, with padding."""
    if lane == SPARSE:
        return prod(sizes) * elements_per_stick
    sticks = -(-sizes[lane] // elements_per_stick)
    return prod(sizes) // sizes[lane] * sticks * elements_per_stick


def place_restickifies(
    nodes: Sequence[LaneNode], uses: Sequence[LaneUse], beam: int = 64
) -> dict[str, int]:
    """Return the lane of every node, from a beam search over ``nodes`` in topological order.

    After every operation the ``beam`` cheapest assignments are kept, of equal ones those of
    preferred lanes; assignments that differ only in values without later readers count once. With
    a beam of 1 every node gets the first of its cheapest lanes, given the earlier choices.
    """
    places = {node.name: place for place, node in enumerate(nodes)}
    reads: list[list[tuple[int | None, npt.NDArray[np.float64]]]] = [[] for _ in nodes]
    last_reader = np.full(len(nodes), -1, np.int64)
    for use in uses:
        producer, reader = places.get(use.producer), places[use.consumer]
        reads[reader].append((producer, np.array(use.costs, np.float64)))
        if producer is not None:
            last_reader[producer] = max(last_reader[producer], reader)
    states = np.zeros((1, 0), np.int64)
    totals = np.zeros(1)
    for place, node in enumerate(nodes):
        grown = np.repeat(totals[:, None], len(node.lanes), axis=1)
        grown += np.array(node.work or 0.0)
        for producer, costs in reads[place]:
            grown += costs[0 if producer is None else states[:, producer]]
        order = np.argsort(grown, axis=None, kind="stable")
        parents, layouts = np.divmod(order, grown.shape[1])
        states = np.column_stack([states[parents], layouts])
        kept = _distinct(states, last_reader[: place + 1] > place)[:beam]
        states, totals = states[kept], grown.ravel()[order[kept]]
    return {node.name: node.lanes[k] for node, k in zip(nodes, states[0], strict=True)}


def _distinct(states: npt.NDArray[np.int64], live: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Rows that are the first with their lanes of live values, in order."""
    if not live.any():
        return np.zeros(1, np.int64)
    _, first = np.unique(states[:, live], axis=0, return_index=True)
    return np.sort(first)


# --- the graph ------------------------------------------------------------------------------------

MOST_GROWTH = 2
"""Maximum growth of a result's memory by another lane than the propagated one."""

Lanes = tuple[int, int]
"""A producer's lane and its consumer's."""


def in_memory(name: str) -> str:
    """The name of the node for the memory of a buffer that leaves its run."""
    return f"memory of {name}"


class StickGraph(msgspec.Struct):
    """The nodes and uses of a run, for `place_restickifies`.

    ``inputs``: lanes of buffers that the run does not make. ``moves``: the restickifies of a use,
    by consumer, number of the load, and lanes; None if the kernel has to spread the operand.
    ``values``: every buffer in each of its lanes, in the row-major order of its elements.
    """

    run: OperationRun
    nodes: list[LaneNode] = msgspec.field(default_factory=list)
    uses: list[LaneUse] = msgspec.field(default_factory=list)
    inputs: dict[str, int] = msgspec.field(default_factory=dict)
    moves: dict[tuple[str, int], dict[Lanes, Moves | None]] = msgspec.field(default_factory=dict)
    values: dict[str, dict[int, Value]] = msgspec.field(default_factory=dict)

    def sizes_of(self, name: str) -> Ints:
        """Sizes of a buffer, in the row-major order of its elements."""
        return next(iter(self.values[name].values())).sizes

    def add(self, step: RunOperation) -> None:
        """Add an operation, its uses, and the inputs that it reads first."""
        reads = [read for read in reads_of(step.body) if isinstance(read.operand, Load)]
        lanes, ranges, dtype = _candidates(step), step.body.ranges, step.body.dtype
        for number, read in enumerate(reads):
            self._add_use(step, number, read, lanes)
        elements = [device_elements(ranges, k, _per_stick(dtype)) for k in lanes]
        work = (
            n - min(elements) if k == SPARSE else 0 for k, n in zip(lanes, elements, strict=True)
        )
        self.nodes.append(LaneNode(step.name, lanes, tuple(work)))
        order = storage_order(self.run.buffers[step.name].strides)
        self.values[step.name] = {k: laid_out(ranges, dtype, k).permuted(order) for k in lanes}
        if step.mutates:
            self._from_outside(step.target)
        elif step.name in self.run.results and has_free_lane(step):
            lane, memory = memory_lane(self.run, step.name), in_memory(step.name)
            costs = (
                (0.0 if own == lane else float(Move(True, lane, n).cost),)
                for own, n in zip(lanes, elements, strict=True)
            )
            self.nodes.append(LaneNode(memory, (lane,)))
            self.uses.append(LaneUse(step.name, memory, tuple(costs)))
        elif step.name in self.run.results:
            self.values[step.name] = {lanes[0]: self._outside(step.name)}

    def _from_outside(self, name: str) -> None:
        """Add an input for memory written outside of the run, or by an operation in place."""
        if name not in self.values:
            value = self._outside(name)
            self.values[name] = {value.lane_dim: value}
            self.inputs[name] = value.lane_dim

    def _outside(self, name: str) -> Value:
        buffer = self.run.buffers[name]
        return Value(argument_view(name, buffer), buffer.dtype, 0)

    def _add_use(self, step: RunOperation, number: int, read: OperandRead, lanes: Ints) -> None:
        producer = read.load.buffer
        self._from_outside(producer)
        moves = {
            (have, own): moves_for(value, read, wanted_lanes(step, number, read.sizes, own))
            for have, value in self.values[producer].items()
            for own in lanes
        }
        costs = (
            tuple(float(cost_of(moves[have, own])) for own in lanes)
            for have in self.values[producer]
        )
        self.moves[step.name, number] = moves
        self.uses.append(LaneUse(producer, step.name, tuple(costs)))


def stick_graph(run: OperationRun) -> StickGraph:
    """The graph of a run whose layouts are propagated. LoweringError for an unusual input."""
    graph = StickGraph(run)
    for step in run.steps:
        graph.add(step)
    return graph


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


def _per_stick(dtype: str) -> int:
    return laid_out((), dtype, SPARSE).view.elements_per_stick


def _candidates(step: RunOperation) -> Ints:
    """Lanes that the result may have, the propagated one first."""
    known = getattr(step.operation, PROPAGATED_LANES, None)
    sizes = step.body.ranges
    if known is None:
        return (max((k for k, n in enumerate(sizes) if n > 1), default=SPARSE),)
    own: int = known[0]
    kind = step.body.operation.kind
    if kind is not OpKind.POINTWISE or not has_free_lane(step):
        return (own,)
    return (own, *_others(sizes, own, step.body.dtype))


def _others(sizes: Ints, own: int, dtype: str) -> Iterator[int]:
    per_stick = _per_stick(dtype)
    most = MOST_GROWTH * device_elements(sizes, own, per_stick)
    for k, n in enumerate(sizes):
        if n > 1 and k != own and device_elements(sizes, k, per_stick) <= most:
            yield k


def wanted_lanes(step: RunOperation, number: int, sizes: Ints, own: int) -> Ints:
    """Lanes that load ``number``, of ``sizes``, may have if the result has lane ``own``."""
    operation = step.body.operation
    if operation.program is not None or operation.kind is OpKind.REDUCTION:
        _, operands = getattr(step.operation, PROPAGATED_LANES, (SPARSE, ()))
        fixed: Ints = operands[number : number + 1]
        return fixed or tuple(range(SPARSE, len(sizes)))
    lane = len(sizes) - 1 if operation.kind is OpKind.MATMUL else own
    return (lane if lane >= 0 and sizes[lane] > 1 else SPARSE,)


OVERHEAD = 1 << 18
"""Fixed cost of a restickify, in elements. It minimises the number of restickifies for tensors up
to half a MiB, and the bytes moved for larger ones.
"""
HARD = 3 * OVERHEAD
"""Cost of an operand that the kernel has to spread."""


class Move(msgspec.Struct, frozen=True):
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
    view = strided_view(value, read.sizes, read.load.strides, read.load.offset)
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


# --- the pass ------------------------------------------------------------------------------------


def restickify(graph: Any) -> None:
    """Choose the lanes of every run of a graph whose layouts are propagated."""
    for run in runs_of(graph):
        try:
            sticks = stick_graph(run)
        except LoweringError:
            continue
        _Inserter(graph, sticks).insert()


def lanes_of(sticks: StickGraph) -> dict[str, int]:
    """The lane of every buffer, by the search that GLOBAL_STICK_OPTIMIZER selects."""
    beam = {} if config.GLOBAL_STICK_OPTIMIZER.read() != "0" else {"beam": 1}
    return sticks.inputs | place_restickifies(sticks.nodes, sticks.uses, **beam)


class _Inserter:
    """Applies the lanes of a run, operation by operation.

    ``_values``: by buffer, the name of the buffer that its operation computes, if that is another
    one because the memory has another lane. ``_copies``: names of copies by source, sizes and lane.
    """

    def __init__(self, graph: Any, sticks: StickGraph) -> None:
        self.graph, self.run, self.sticks = graph, sticks.run, sticks
        self.lanes = lanes_of(sticks)
        self._values: dict[str, str] = {}
        self._copies: dict[tuple[Load, Ints, int], str] = {}

    def insert(self) -> None:
        """Set the lane and the operands of every operation."""
        for step in self.run.steps:
            loads = [read for read in reads_of(step.body) if isinstance(read.operand, Load)]
            sources = {k: self._source(step, k, read) for k, read in enumerate(loads)}
            if changed := {k: source for k, source in sources.items() if source is not None}:
                redirect_by_number(step.operation, changed)
            self._lay_out(step)

    def _lay_out(self, step: RunOperation) -> None:
        if step.mutates:
            old = [key for key in self._copies if key[0].buffer == step.target]
            for key in old:
                del self._copies[key]
        if not has_free_lane(step):
            return
        lane = self.lanes[step.name]
        if step.name not in self.run.results or lane == memory_lane(self.run, step.name):
            set_lane(self.run, step.operation, lane)
            return
        computed = split_memory(self.graph, step.operation, lane)
        self._values[step.name] = computed.get_name()
        sizes = self.sticks.sizes_of(step.name)
        whole = Load(str(computed.get_name()), _dense(sizes))
        order = storage_order(self.run.buffers[step.name].strides)
        lane = memory_lane(self.run, step.name)
        self._copies[whole, sizes, order.index(lane) if lane >= 0 else lane] = step.name

    def _source(self, step: RunOperation, number: int, read: OperandRead) -> Load | None:
        """The source that a load is redirected to; None if it stays."""
        load = read.load
        key = self.lanes[load.buffer], self.lanes[step.name]
        moves = self.sticks.moves[step.name, number][key] or ()
        source = Load(self._values.get(load.buffer, load.buffer), load.strides, load.offset)
        for move in moves:
            source = self._moved(step, source, read, move)
        if source.buffer == load.buffer:
            return None
        strides = [0] * (len(step.body.ranges) + len(step.body.reduced))
        for axis, stride in zip(read.axes, source.strides, strict=True):
            strides[axis] = stride
        return Load(source.buffer, tuple(strides), source.offset)

    def _moved(self, step: RunOperation, source: Load, read: OperandRead, move: Move) -> Load:
        """The source after one restickify, which exists already or is inserted before ``step``."""
        if not move.whole:
            strides = _dense(read.sizes)
            return Load(self._copy(step, source, read.sizes, move.lane), strides)
        sizes = self.sticks.sizes_of(read.load.buffer)
        whole = Load(source.buffer, _dense(sizes))
        return replace(source, buffer=self._copy(step, whole, sizes, move.lane))

    def _copy(self, step: RunOperation, source: Load, sizes: Ints, lane: int) -> str:
        key = (source, sizes, lane)
        if key not in self._copies:
            made = insert_restickify(self.graph, step.operation, source, sizes, lane)
            self._copies[key] = str(made.get_name())
        return self._copies[key]


def _dense(sizes: Ints) -> Ints:
    """Strides of a contiguous tensor, 0 along dims of size 1."""
    strides = contiguous_strides(sizes)
    return tuple(s if n > 1 else 0 for n, s in zip(sizes, strides, strict=True))


RESTICKIFY = DeviceOperation(OpKind.RESTICKIFY, "ReStickifyOpHBM")


def insert_restickify(graph: Any, before: Any, source: Load, sizes: Ints, lane: int) -> Any:
    """A copy of ``source``, a tensor of ``sizes`` and the dtype of its buffer, with sticks along
    ``lane``: a ComputedBuffer in front of operation ``before``, with its origins.
    """
    origin = graph.graph_inputs.get(source.buffer) or graph.get_buffer(source.buffer)
    data = _copy_of(source, sizes, origin.get_dtype(), before.get_device())
    layout = ir.FixedLayout(data.device, data.dtype, list(sizes), list(contiguous_strides(sizes)))
    with ir.IRNode.current_origins(before.get_origins()):
        buffer = ir.ComputedBuffer(name=None, layout=with_lane_layout(layout, lane), data=data)
    setattr(buffer, DEVICE_OPERATION, RESTICKIFY)
    _place(graph, buffer, before)
    return buffer


def split_memory(graph: Any, operation: Any, lane: int) -> Any:
    """Split ``operation`` into one that computes a new buffer with sticks along ``lane``, and a
    copy into its own buffer, whose name, layout and readers stay. Returns the computing operation.
    """
    data = operation.data
    sizes = tuple(int(n) for n in data.ranges)
    strides = tuple(int(n) for n in operation.layout.stride)
    layout = ir.FixedLayout(data.device, data.dtype, list(sizes), list(strides))
    with ir.IRNode.current_origins(operation.get_origins()):
        computed = ir.ComputedBuffer(name=None, layout=with_lane_layout(layout, lane), data=data)
        _place(graph, computed, operation)
        source = Load(computed.get_name(), strides)
        operation.data = _copy_of(source, sizes, data.dtype, data.device)
    if (known := getattr(operation, DEVICE_OPERATION, None)) is not None:
        setattr(computed, DEVICE_OPERATION, known)
    setattr(operation, DEVICE_OPERATION, RESTICKIFY)
    clear_caches(operation)
    return computed


def _copy_of(source: Load, sizes: Ints, dtype: Any, device: Any) -> Any:
    def body(index: Sequence[Any]) -> Any:
        return ops.load(source.buffer, source.at(index))

    return ir.Pointwise(device=device, dtype=dtype, inner_fn=body, ranges=list(sizes))


def _place(graph: Any, operation: Any, before: Any) -> None:
    register(operation)
    places = [id(known) for known in graph.operations]
    graph.operations.insert(places.index(id(before)), operation)


def redirect_by_number(operation: Any, sources: Mapping[int, Load]) -> None:
    """Redirect the loads of a body, by their number, to ``sources``, whose strides are per axis of
    the iteration, the reduced ones last.
    """

    def change(iteration: list[Any]) -> LoadAt:
        numbers = itertools.count()

        def load_at(name: str, index: Any) -> tuple[str, Any]:
            source = sources.get(next(numbers))
            return (name, index) if source is None else (source.buffer, source.at(iteration))

        return load_at

    change_loads(operation, change)
