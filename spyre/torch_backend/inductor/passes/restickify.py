"""The `restickify` pass: chooses lanes for whole runs, and inserts the copies that they require.

`place_restickifies` searches over all operations of a run (or greedily, with
``GLOBAL_STICK_OPTIMIZER=0``). The chosen lanes become the layouts of the buffers, and each
restickify becomes a `ReStickifyOpHBM` operation, shared by all readers of the same copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spyre import config
from spyre.layout import contiguous_strides
from spyre.torch_backend.inductor.base.compat import clear_caches, ir, ops
from spyre.torch_backend.inductor.base.layouts import storage_order, with_lane_layout
from spyre.torch_backend.inductor.lowering.device_ir import (
    DEVICE_OPERATION,
    DeviceOperation,
    Load,
    OperandRead,
    reads_of,
)
from spyre.torch_backend.inductor.passes.runs import (
    RunOperation,
    memory_lane,
    runs_of,
    set_lane,
)
from spyre.torch_backend.inductor.passes.stick_graph import (
    Move,
    StickGraph,
    has_free_lane,
    place_restickifies,
    stick_graph,
)
from spyre.torch_backend.inductor.tiling.full_buffers import LoadAt, change_loads, register
from spyre.torch_backend.program import Ints, LoweringError, OpKind


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
        load = read.operand
        assert isinstance(load, Load)
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
        assert isinstance(read.operand, Load)
        sizes = self.sticks.sizes_of(read.operand.buffer)
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
