"""Placement of restickifies: the lane of every value in a graph, at least cost.

An operation reads its inputs with sticks along the dims that its output has sticks along; an input
in another layout is restickified first, which moves all of its elements. `place_restickifies`
chooses a layout per operation so that few elements are moved (hardware reference §4.5), by beam
search over the whole graph; `place_greedily` chooses operation by operation. A layout is
represented by its lane: the host dim along sticks, or `SPARSE` for one element per stick. Pure
functions over frozen data, for any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, prod

import numpy as np
import numpy.typing as npt

from spyre.errors import UnsupportedError

SPARSE = -1
"""The lane of a value with one element per stick, such as a sum over sticks."""


class NodeKind(StrEnum):
    """How an operation's output layout binds its inputs."""

    ALL_SAME = "all the same"
    """Pointwise: every input has the lane of the output."""
    FIXED_IN_OUT = "fixed"
    """Matmul, reductions: the operation determines the lane of each input."""
    ANY_IN = "any input"
    """Copies: inputs in any layout."""


@dataclass(frozen=True, slots=True)
class LaneValue:
    """A graph input or an operation's output, in each layout it may have.

    ``lanes``: candidates, preferred ones first. ``elements``: size of its device memory for each of
    them, stick padding included.
    """

    name: str
    lanes: tuple[int, ...]
    elements: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaneNode:
    """An operation and its result."""

    output: LaneValue
    kind: NodeKind
    work: tuple[int, ...] = ()
    """Per layout of the output, elements computed beyond the minimum; empty: none."""

    @property
    def name(self) -> str:
        """Name of the operation and of its output."""
        return self.output.name


@dataclass(frozen=True, slots=True)
class LaneUse:
    """One use of a value: operand ``operand`` of ``consumer``.

    ``wanted``: pairs (lane of the consumer's output, lane that it requires of the producer, in the
    producer's dims). ``shifted``: the view begins within a stick, so that
    every lane needs a move. ``costs``: elements to be moved, [producer's layout, consumer's],
    instead of those derived from ``wanted`` and ``shifted``.
    """

    producer: str
    consumer: str
    operand: int
    wanted: tuple[tuple[int, int], ...] = ()
    shifted: bool = False
    costs: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Restickify:
    """A copy of ``edge.producer`` with sticks along ``to_lane``, inserted before the consumer."""

    edge: LaneUse
    from_lane: int
    to_lane: int
    elements: int


@dataclass(frozen=True, slots=True)
class LanePlacement:
    """The lane of every operation's output, the restickifies, and the elements they move."""

    lanes: Mapping[str, int]
    restickified: tuple[Restickify, ...]
    elements: int

    def why(self) -> str:
        """A line of text per restickify."""
        if not self.restickified:
            return "no restickify: all inputs have sticks along the required dims"
        return "\n".join(
            f"restickify {r.edge.producer} for operand {r.edge.operand} of {r.edge.consumer}: "
            f"lane {r.from_lane} to {r.to_lane}, {r.elements} elements"
            for r in self.restickified
        )


def device_elements(sizes: Sequence[int], lane: int, elements_per_stick: int) -> int:
    """Elements in memory of a value of ``sizes`` with sticks along ``lane``, with padding."""
    if lane == SPARSE:
        return prod(sizes) * elements_per_stick
    sticks = -(-sizes[lane] // elements_per_stick)
    return prod(sizes) // sizes[lane] * sticks * elements_per_stick


Costs = npt.NDArray[np.float64]
"""Elements to be moved, infinite if no restickify helps; [producer's layout, consumer's]."""


def place_restickifies(
    nodes: Sequence[LaneNode], edges: Sequence[LaneUse], inputs: Sequence[LaneValue], beam: int = 64
) -> LanePlacement:
    """Layouts for ``nodes`` (in topological order) by beam search.

    ``inputs``: of the graph, each in one layout. After every operation the ``beam`` cheapest
    assignments are kept, of equal ones those of preferred layouts; assignments that differ only in
    values without later readers count once. If none of them can be completed, the search is
    repeated with a wider beam. UnsupportedError SPY984 if an operation cannot get its inputs.
    """
    graph = _PlacementGraph.of(nodes, edges, inputs)
    placement = _search(graph, beam)
    while placement.stuck is not None and not placement.complete and beam < _WIDEST:
        beam *= 4
        placement = _search(graph, beam)
    return graph.placement(placement)


def place_greedily(
    nodes: Sequence[LaneNode], edges: Sequence[LaneUse], inputs: Sequence[LaneValue]
) -> LanePlacement:
    """Choose node by node: the first of its cheapest layouts, given the earlier choices.

    UnsupportedError SPY984 if an operation cannot get its inputs then.
    """
    graph = _PlacementGraph.of(nodes, edges, inputs)
    return graph.placement(_search(graph, 1))


_WIDEST = 1 << 16
"""Maximum number of assignments that a search keeps."""


@dataclass(frozen=True, slots=True)
class _SearchResult:
    """The index of every node's layout, or ``stuck``: the index of the node for which no assignment
    is left. ``complete``: the beam dropped no assignment.
    """

    choice: tuple[int, ...]
    stuck: int | None
    complete: bool


@dataclass(frozen=True, slots=True)
class _OperandCosts:
    """The costs of an edge. ``producer``: index of the node, None for a graph input."""

    edge: LaneUse
    value: LaneValue
    producer: int | None
    costs: Costs

    def producer_layout(self, choice: Sequence[int]) -> int:
        """Index of the producer's layout in ``choice``."""
        return 0 if self.producer is None else choice[self.producer]


@dataclass(frozen=True, slots=True)
class _PlacementGraph:
    """``uses``: per node, of its operands. ``last_reader``: per node, the last one reading it."""

    nodes: tuple[LaneNode, ...]
    uses: tuple[tuple[_OperandCosts, ...], ...]
    last_reader: npt.NDArray[np.int64]

    @staticmethod
    def of(
        nodes: Sequence[LaneNode], edges: Sequence[LaneUse], inputs: Sequence[LaneValue]
    ) -> _PlacementGraph:
        values: dict[str, tuple[LaneValue, int | None]] = {v.name: (v, None) for v in inputs}
        if any(len(value.lanes) != 1 for value in inputs):
            raise ValueError("a graph input has exactly one layout")
        last_reader = np.full(len(nodes), -1, np.int64)
        uses: list[tuple[_OperandCosts, ...]] = []
        reads: dict[str, list[LaneUse]] = {node.name: [] for node in nodes}
        for edge in sorted(edges, key=lambda edge: edge.operand):
            reads[edge.consumer].append(edge)
        for place, node in enumerate(nodes):
            own = reads[node.name]
            if late := [e.producer for e in own if e.producer not in values]:
                raise ValueError(f"{node.name} reads {', '.join(late)} before it is computed")
            uses.append(tuple(_operand_costs(edge, node, *values[edge.producer]) for edge in own))
            for use in uses[-1]:
                if use.producer is not None:
                    last_reader[use.producer] = place
            values[node.name] = (node.output, place)
        return _PlacementGraph(tuple(nodes), tuple(uses), last_reader)

    def placement(self, searched: _SearchResult) -> LanePlacement:
        """The placement of a search result; SPY984 if it is stuck."""
        if searched.stuck is not None:
            raise self._unplaceable(searched.stuck)
        lanes = {
            node.name: node.output.lanes[layout]
            for node, layout in zip(self.nodes, searched.choice, strict=True)
        }
        moved = tuple(
            restickify
            for uses, layout in zip(self.uses, searched.choice, strict=True)
            for use in uses
            if (restickify := _restickify(use, use.producer_layout(searched.choice), layout, lanes))
        )
        return LanePlacement(lanes, moved, sum(r.elements for r in moved))

    def _unplaceable(self, place: int) -> UnsupportedError:
        node, uses = self.nodes[place], self.uses[place]
        needs = "; ".join(f"{use.edge.producer} along {_needed_text(use)}" for use in uses)
        has = "; ".join(f"{use.edge.producer} along {_lanes_text(use.value.lanes)}" for use in uses)
        return UnsupportedError(
            "SPY984",
            f"{node.name} cannot have its inputs with sticks along the dims it needs",
            expected=needs,
            found=f"{has} (and the lanes that other uses allow)",
            hint="a tensor of one element per stick cannot be restickified; copy it densely first",
        )


def _operand_costs(
    edge: LaneUse, node: LaneNode, value: LaneValue, producer: int | None
) -> _OperandCosts:
    if edge.costs:
        return _OperandCosts(edge, value, producer, np.array(edge.costs, np.float64))
    wanted = dict(edge.wanted)
    costs = np.zeros((len(value.lanes), len(node.output.lanes)))
    if node.kind is not NodeKind.ANY_IN:
        for row, (lane, elements) in enumerate(zip(value.lanes, value.elements, strict=True)):
            for column, own in enumerate(node.output.lanes):
                costs[row, column] = _cost(lane, wanted.get(own), elements, edge.shifted)
    return _OperandCosts(edge, value, producer, costs)


def _cost(lane: int, wanted: int | None, elements: int, shifted: bool) -> float:
    """Elements to move for a use; infinite between full sticks and sticks of one element."""
    if wanted is None or (lane == SPARSE) != (wanted == SPARSE):
        return inf
    return 0 if lane == wanted and (lane == SPARSE or not shifted) else elements


def _restickify(
    use: _OperandCosts, producer_layout: int, layout: int, lanes: Mapping[str, int]
) -> Restickify | None:
    cost = use.costs[producer_layout, layout]
    if not cost:
        return None
    own = lanes[use.edge.consumer]
    to_lane = dict(use.edge.wanted).get(own, own)
    return Restickify(use.edge, use.value.lanes[producer_layout], to_lane, int(cost))


def _search(graph: _PlacementGraph, width: int) -> _SearchResult:
    """The cheapest complete assignment that a beam of ``width`` finds."""
    states = np.zeros((1, 0), np.int64)
    costs = np.zeros(1)
    complete = True
    for place, node in enumerate(graph.nodes):
        grown = np.repeat(costs[:, None], len(node.output.lanes), axis=1)
        grown += np.array(node.work or 0.0)
        for use in graph.uses[place]:
            at = 0 if use.producer is None else states[:, use.producer]
            grown += use.costs[at]
        order = np.argsort(grown, axis=None, kind="stable")
        order = order[np.isfinite(grown.ravel()[order])]
        if not len(order):
            return _SearchResult((), place, complete)
        parents, layouts = np.divmod(order, grown.shape[1])
        states = np.column_stack([states[parents], layouts])
        kept = _distinct(states, graph.last_reader[: place + 1] > place)
        complete = complete and len(kept) <= width
        kept = kept[:width]
        states, costs = states[kept], grown.ravel()[order[kept]]
    return _SearchResult(tuple(int(layout) for layout in states[0]), None, complete)


def _distinct(states: npt.NDArray[np.int64], live: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Rows that are the first with their layouts of live values, in order."""
    if not live.any():
        return np.zeros(1, np.int64)
    _, first = np.unique(states[:, live], axis=0, return_index=True)
    return np.sort(first)


def _needed_text(use: _OperandCosts) -> str:
    return _lanes_text(tuple(dict.fromkeys(lane for _, lane in use.edge.wanted)))


def _lanes_text(lanes: Sequence[int]) -> str:
    return " or ".join("single elements" if k == SPARSE else f"dim {k}" for k in lanes) or "none"
