"""Restickify placement: lanes chosen for a run as a whole, and the copies they make necessary.

`place_restickifies` searches over all operations of a run (greedily, one by one, with
``GLOBAL_STICK_OPTIMIZER=0``); what it chooses becomes the layouts of the buffers, and each
restickify an operation of its own. One copy serves all readers that want the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spyre import config
from spyre.layout import contiguous_strides
from spyre.torch_backend.inductor.body import Load
from spyre.torch_backend.inductor.lane_graph import Placement
from spyre.torch_backend.inductor.operand_views import Read, reads_of, storage_order
from spyre.torch_backend.inductor.passes.insertion import (
    Source,
    insert_restickify,
    lead,
    split_memory,
)
from spyre.torch_backend.inductor.passes.moves import Move
from spyre.torch_backend.inductor.passes.propagate_layouts import memory_lane, set_lane
from spyre.torch_backend.inductor.passes.runs import Run, Step, runs_of
from spyre.torch_backend.inductor.passes.stick_graph import StickGraph, can_be_led, stick_graph
from spyre.torch_backend.inductor.restickify_placement import place_greedily, place_restickifies
from spyre.torch_backend.program.value import Ints, NotExpressible


def restickify(graph: Any) -> None:
    """Choose the lanes of every run of a graph whose layouts are propagated."""
    for run in runs_of(graph):
        try:
            sticks = stick_graph(run)
        except NotExpressible:
            continue
        _Inserter(graph, run, sticks, placement_of(sticks)).insert()


def placement_of(sticks: StickGraph) -> Placement:
    """The placement the configured search finds."""
    searched = config.GLOBAL_STICK_OPTIMIZER.read() != "0"
    place = place_restickifies if searched else place_greedily
    return place(sticks.nodes, sticks.edges, sticks.inputs)


class _Inserter:
    """Carries out a placement, operation by operation.

    ``_values``: by buffer, the name of its elements as they were computed: another one than its
    own where its memory has another lane. ``_copies``: by what they are copies of.
    """

    def __init__(self, graph: Any, run: Run, sticks: StickGraph, placement: Placement) -> None:
        self.graph, self.run, self.sticks = graph, run, sticks
        self.lanes = dict(placement.lanes)
        self.lanes |= {value.name: value.lanes[0] for value in sticks.inputs}
        self._values: dict[str, str] = {}
        self._copies: dict[tuple[Source, Ints, int], str] = {}

    def insert(self) -> None:
        """Give every operation its lane and its operands."""
        for step in self.run.steps:
            self._lead(step)
            self._lay_out(step)

    def _lay_out(self, step: Step) -> None:
        if step.mutates:
            old = [key for key in self._copies if key[0].buffer == step.target]
            for key in old:
                del self._copies[key]
        if not can_be_led(step):
            return
        lane = self.lanes[step.name]
        if step.name not in self.run.results or lane == memory_lane(self.run, step.name):
            set_lane(self.run, step.operation, lane)
            return
        computed = split_memory(self.graph, step.operation, lane)
        self._values[step.name] = computed.get_name()
        sizes = self.sticks.sizes[step.name]
        whole = Source(str(computed.get_name()), _dense(sizes))
        order = storage_order(self.run.buffers[step.name].strides)
        lane = memory_lane(self.run, step.name)
        self._copies[whole, sizes, order.index(lane) if lane >= 0 else lane] = step.name

    def _lead(self, step: Step) -> None:
        loads = [read for read in reads_of(step.body) if isinstance(read.operand, Load)]
        sources = {
            number: source
            for number, read in enumerate(loads)
            if (source := self._source(step, number, read)) is not None
        }
        if sources:
            lead(step.operation, sources)

    def _source(self, step: Step, number: int, read: Read) -> Source | None:
        """What a load reads instead of what it says; None: what it says."""
        load = read.operand
        assert isinstance(load, Load)
        key = self.lanes[load.buffer], self.lanes[step.name]
        moves = self.sticks.moves[step.name, number][key] or ()
        source = Source(self._values.get(load.buffer, load.buffer), load.strides, load.offset)
        for move in moves:
            source = self._moved(step, source, read, move)
        if source.buffer == load.buffer:
            return None
        strides = [0] * (len(step.body.ranges) + len(step.body.reduced))
        for axis, stride in zip(read.axes, source.strides, strict=True):
            strides[axis] = stride
        return Source(source.buffer, tuple(strides), source.offset)

    def _moved(self, step: Step, source: Source, read: Read, move: Move) -> Source:
        """The source after one restickify, which is there already or made for ``step``."""
        if not move.whole:
            strides = _dense(read.sizes)
            return Source(self._copy(step, source, read.sizes, move.lane), strides)
        assert isinstance(read.operand, Load)
        sizes = self.sticks.sizes[read.operand.buffer]
        whole = Source(source.buffer, _dense(sizes))
        return replace(source, buffer=self._copy(step, whole, sizes, move.lane))

    def _copy(self, step: Step, source: Source, sizes: Ints, lane: int) -> str:
        key = (source, sizes, lane)
        if key not in self._copies:
            made = insert_restickify(self.graph, step.operation, source, sizes, lane)
            self._copies[key] = str(made.get_name())
        return self._copies[key]


def _dense(sizes: Ints) -> Ints:
    """Strides of a contiguous tensor, 0 along dims of size 1."""
    strides = contiguous_strides(sizes)
    return tuple(s if n > 1 else 0 for n, s in zip(sizes, strides, strict=True))
