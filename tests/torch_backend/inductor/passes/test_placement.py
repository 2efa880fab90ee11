"""Restickify placement against every assignment there is, and examples worked by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from spyre.errors import UnsupportedError
from spyre.torch_backend.inductor.passes.placement import (
    SPARSE,
    LaneNode,
    LaneUse,
    LaneValue,
    NodeKind,
    device_elements,
    place_greedily,
    place_restickifies,
)

STRAIGHT, TRANSPOSED = (0, 1), (1, 0)


def value(name, sizes, *lanes):
    return LaneValue(name, lanes, tuple(device_elements(sizes, lane, 64) for lane in lanes))


def pointwise(name, sizes, *lanes):
    return LaneNode(value(name, sizes, *lanes), NodeKind.ALL_SAME)


def wanted_through(axes, lanes):
    """`LaneUse.wanted` of a pointwise use.

    ``axes``: for every dim of the consumer, the producer's dim, None if the producer is broadcast
    along it. For a lane along which it is broadcast, the producer must be `SPARSE`.
    """
    pairs = [(lane, SPARSE if lane == SPARSE else axes[lane]) for lane in lanes]
    return tuple((lane, SPARSE if dim is None else dim) for lane, dim in pairs)


def reads(consumer: LaneNode, *operands):
    """Edges of ``consumer``: pairs (producer, axes it is seen through)."""
    lanes = consumer.output.lanes
    return [
        LaneUse(producer, consumer.name, k, wanted_through(axes, lanes))
        for k, (producer, axes) in enumerate(operands)
    ]


def sum_with_transpose(a_sizes, b_sizes):
    """y = a + b.T with the standard layouts; candidates: a's stick, then b.T's."""
    y = pointwise("y", a_sizes, 1, 0)
    inputs = [value("a", a_sizes, 1), value("b", b_sizes, 1)]
    return [y], reads(y, ("a", STRAIGHT), ("b", TRANSPOSED)), inputs


def test_a_sum_with_a_transpose_keeps_the_first_stick():
    placement = place_restickifies(*sum_with_transpose((128, 128), (128, 128)))
    assert placement.lanes == {"y": 1}
    (moved,) = placement.restickified
    assert (moved.edge.producer, moved.from_lane, moved.to_lane) == ("b", 1, 0)
    assert placement.elements == moved.elements == 128 * 128
    assert placement.why() == "restickify b for operand 1 of y: lane 1 to 0, 16384 elements"


def test_the_smaller_operand_is_restickified():
    """a [96, 65] holds 96 x 128 elements, b [65, 96] holds 65 x 128."""
    nodes, edges, inputs = sum_with_transpose((96, 65), (65, 96))
    placement = place_restickifies(nodes, edges, inputs)
    assert [r.edge.producer for r in placement.restickified] == ["b"]
    assert placement.elements == 65 * 128
    nodes, edges, inputs = sum_with_transpose((65, 96), (96, 65))
    placement = place_restickifies(nodes, edges, inputs)
    assert placement.lanes == {"y": 0}
    assert [r.edge.producer for r in placement.restickified] == ["a"]
    assert placement.restickified[0].to_lane == 0


def chain():
    """u = a + b.T is a tie; v = u + c.T then wants u as c.T has it."""
    u, v = pointwise("u", (128, 128), 1, 0), pointwise("v", (128, 128), 1, 0)
    w = pointwise("w", (128, 128), 1, 0)
    edges = [
        *reads(u, ("a", STRAIGHT), ("b", TRANSPOSED)),
        *reads(v, ("u", STRAIGHT), ("c", TRANSPOSED)),
        *reads(w, ("v", STRAIGHT), ("c", TRANSPOSED)),
    ]
    return [u, v, w], edges, [value(name, (128, 128), 1) for name in "abc"]


def test_the_beam_sees_further_than_one_operation():
    size = 128 * 128
    greedy, beam = place_greedily(*chain()), place_restickifies(*chain())
    assert greedy.lanes == {"u": 1, "v": 1, "w": 1}
    assert greedy.elements == 3 * size
    assert beam.lanes == {"u": 0, "v": 0, "w": 0}
    assert beam.elements == size
    assert [r.edge.producer for r in beam.restickified] == ["a"]
    assert place_restickifies(*chain(), beam=1) == greedy


def test_a_beam_of_two_is_enough_for_a_chain():
    """Of assignments that differ in values nobody reads any more, one stays."""
    nodes, edges, inputs = [], [], [value("x0", (64, 64), 1), value("c", (64, 64), 1)]
    for k in range(40):
        nodes.append(pointwise(f"x{k + 1}", (64, 64), 1, 0))
        axes = TRANSPOSED if k % 3 else STRAIGHT
        edges += reads(nodes[-1], (f"x{k}", axes), ("c", TRANSPOSED if k > 20 else STRAIGHT))
    narrow = place_restickifies(nodes, edges, inputs, beam=2)
    assert narrow == place_restickifies(nodes, edges, inputs, beam=4096)
    assert narrow.elements < place_greedily(nodes, edges, inputs).elements


def test_costs_that_are_given():
    """Moving u for y is dear in its first lane, whatever y's is; or computing in the other."""
    u, y = pointwise("u", (128, 128), 1, 0), pointwise("y", (128, 128), 1, 0)
    edges = [
        LaneUse("a", "u", 0, costs=((0.0, 5.0),)),
        LaneUse("u", "y", 0, costs=((9.0, 9.0), (0.0, 0.0))),
    ]
    inputs = [value("a", (128, 128), 1)]
    placement = place_restickifies([u, y], edges, inputs)
    assert placement.lanes == {"u": 0, "y": 1}
    assert placement.elements == 5
    heavier = [replace(u, work=(0, 5)), y]
    assert place_restickifies(heavier, edges, inputs).lanes == {"u": 1, "y": 1}


def test_nothing_to_move():
    y = pointwise("y", (4, 64), 1)
    inputs = [value("a", (4, 64), 1)]
    placement = place_restickifies([y], reads(y, ("a", STRAIGHT), ("a", STRAIGHT)), inputs)
    assert placement.restickified == ()
    assert placement.why().startswith("no restickify")
    assert place_restickifies([], [], inputs).lanes == {}


def test_a_matmul_says_what_it_needs():
    """left [M, K] along K, right [K, N] along N; right is given along K."""
    c = LaneNode(value("c", (128, 256), 1), NodeKind.FIXED_IN_OUT)
    edges = [LaneUse("left", "c", 0, ((1, 1),)), LaneUse("right", "c", 1, ((1, 1),))]
    inputs = [value("left", (128, 64), 1), value("right", (64, 256), 0)]
    placement = place_restickifies([c], edges, inputs)
    (moved,) = placement.restickified
    assert (moved.edge.operand, moved.from_lane, moved.to_lane) == (1, 0, 1)
    assert moved.elements == 64 * 256


def test_copies_read_what_there_is():
    y = LaneNode(value("y", (64, 64), 1, 0), NodeKind.ANY_IN)
    edges = [LaneUse("a", "y", 0)]
    assert place_restickifies([y], edges, [value("a", (64, 64), 0)]).restickified == ()


def test_a_view_from_within_a_stick_is_moved():
    nodes, edges, inputs = sum_with_transpose((64, 64), (64, 64))
    edges[0] = replace(edges[0], shifted=True)
    placement = place_restickifies(nodes, edges, inputs)
    assert placement.lanes == {"y": 0}
    assert [r.edge.producer for r in placement.restickified] == ["a"]


def test_sparse_values_serve_broadcast_lanes_only():
    """x - max(x): the maximum has one element per stick and is broadcast along dim 1."""
    row_max, y = (
        LaneNode(value("m", (8, 1), SPARSE), NodeKind.FIXED_IN_OUT),
        pointwise("y", (8, 64), 0, 1),
    )
    edges = [LaneUse("x", "m", 0, ((SPARSE, 1),)), *reads(y, ("x", STRAIGHT), ("m", (0, None)))]
    inputs = [value("x", (8, 64), 1)]
    placement = place_restickifies([row_max, y], edges, inputs)
    assert placement.lanes == {"m": SPARSE, "y": 1}
    assert placement.elements == 0


def test_no_layout_at_all():
    y = pointwise("y", (8, 64), 0)
    edges = reads(y, ("x", STRAIGHT), ("m", (0, None)))
    inputs = [value("x", (8, 64), 1), value("m", (8, 1), 0)]
    for place in (place_restickifies, place_greedily):
        with pytest.raises(UnsupportedError, match="SPY984: y cannot have its inputs") as caught:
            place([y], [*edges[:1], replace(edges[1], wanted=((0, SPARSE),))], inputs)
        assert caught.value.finding.expected == "x along dim 0; m along single elements"
        assert caught.value.finding.found.startswith("x along dim 1; m along dim 0 (")


def dead_end():
    """u is cheapest in a layout that v, which needs single elements, cannot take."""
    u = LaneNode(LaneValue("u", (0, 1, SPARSE), (64, 64, 64)), NodeKind.FIXED_IN_OUT)
    v = LaneNode(LaneValue("v", (SPARSE,), (64,)), NodeKind.ALL_SAME)
    first = LaneUse("x", "u", 0, ((0, 0), (1, 1), (SPARSE, 1)))
    return [u, v], [first, LaneUse("u", "v", 0, ((SPARSE, SPARSE),))], [LaneValue("x", (0,), (64,))]


def test_a_beam_that_leads_nowhere_is_widened():
    assert place_restickifies(*dead_end(), beam=1).lanes == {"u": SPARSE, "v": SPARSE}
    with pytest.raises(UnsupportedError, match="SPY984: v cannot"):
        place_greedily(*dead_end())


def test_graphs_in_order_with_inputs_in_one_layout():
    nodes, edges, inputs = chain()
    with pytest.raises(ValueError, match="v reads u before it is computed"):
        place_restickifies(nodes[1:], edges[2:], inputs)
    with pytest.raises(ValueError, match="one layout"):
        place_restickifies(nodes, edges, [*inputs, value("d", (4, 4), 0, 1)])


def test_device_elements():
    assert device_elements((96, 65), 1, 64) == 96 * 128
    assert device_elements((96, 65), 0, 64) == 65 * 128
    assert device_elements((3, 5), SPARSE, 64) == 15 * 64


def cost_of(nodes, edges, inputs, lanes):
    """Elements to move under ``lanes`` (by name); infinite where it cannot be."""
    values = {v.name: v for v in [*inputs, *(node.output for node in nodes)]}
    kinds = {node.name: node.kind for node in nodes}
    total = 0
    for edge in edges:
        if kinds[edge.consumer] is NodeKind.ANY_IN:
            continue
        have, want = lanes[edge.producer], dict(edge.wanted).get(lanes[edge.consumer])
        if want is None or (have == SPARSE) != (want == SPARSE):
            return math.inf
        if have != want or (edge.shifted and have != SPARSE):
            producer = values[edge.producer]
            total += producer.elements[producer.lanes.index(have)]
    return total


def least(nodes, edges, inputs):
    """The least cost of all assignments."""
    given_lanes = {v.name: v.lanes[0] for v in inputs}
    names = [node.name for node in nodes]
    return min(
        cost_of(nodes, edges, inputs, given_lanes | dict(zip(names, lanes, strict=True)))
        for lanes in itertools.product(*(node.output.lanes for node in nodes))
    )


LANES = st.lists(st.sampled_from([SPARSE, 0, 1, 2]), min_size=1, max_size=3, unique=True)


@st.composite
def graphs(draw):
    inputs = [
        LaneValue(f"i{k}", (draw(st.sampled_from([0, 1, 2, SPARSE])),), (draw(st.integers(1, 9)),))
        for k in range(draw(st.integers(1, 3)))
    ]
    names, nodes, edges = [v.name for v in inputs], [], []
    for k in range(draw(st.integers(1, 6))):
        lanes = tuple(draw(LANES))
        sizes = tuple(draw(st.integers(1, 9)) for _ in lanes)
        nodes.append(
            LaneNode(LaneValue(f"n{k}", lanes, sizes), draw(st.sampled_from(list(NodeKind))))
        )
        for operand in range(draw(st.integers(1, 3))):
            axes = draw(st.permutations([0, 1, 2]))
            if draw(st.integers(0, 5)) == 0:
                axes = [None, *axes[1:]]
            shifted = draw(st.integers(0, 5)) == 0
            producer = draw(st.sampled_from(names))
            edges.append(LaneUse(producer, f"n{k}", operand, wanted_through(axes, lanes), shifted))
        names.append(f"n{k}")
    return nodes, edges, inputs


@settings(deadline=None, max_examples=300)
@given(graphs(), st.sampled_from([1, 2, 64, 4096]))
def test_against_every_assignment(graph, beam):
    nodes, edges, inputs = graph
    best = least(nodes, edges, inputs)
    if best == math.inf:
        with pytest.raises(UnsupportedError, match="SPY984"):
            place_restickifies(*graph, beam=beam)
        return
    placement = place_restickifies(*graph, beam=beam)
    lanes = {v.name: v.lanes[0] for v in inputs} | dict(placement.lanes)
    assert placement.elements == cost_of(*graph, lanes) >= best
    assert placement.elements == sum(r.elements for r in placement.restickified)
    assert placement == place_restickifies(*graph, beam=beam)
    if beam == 4096:  # as wide as there are assignments
        assert placement.elements == best


@settings(deadline=None)
@given(graphs())
def test_greedy_takes_the_first_least_layout_of_each_node(graph):
    nodes, edges, inputs = graph
    lanes = {v.name: v.lanes[0] for v in inputs}
    for node in nodes:
        own = [edge for edge in edges if edge.consumer == node.name]
        costs = [
            cost_of(nodes, own, inputs, lanes | {node.name: lane}) for lane in node.output.lanes
        ]
        if min(costs) == math.inf:
            with pytest.raises(UnsupportedError, match=f"SPY984: {node.name} cannot"):
                place_greedily(*graph)
            return
        lanes[node.name] = node.output.lanes[costs.index(min(costs))]
    found = place_greedily(*graph)
    assert dict(found.lanes) == {node.name: lanes[node.name] for node in nodes}
    assert found.elements == cost_of(*graph, lanes)


def test_a_thousand_operations():
    nodes, edges, inputs = [], [], [value(f"i{k}", (512, 512), 1) for k in range(8)]
    names = [v.name for v in inputs]
    for k in range(1000):
        nodes.append(pointwise(f"n{k}", (512, 512), 1, 0))
        axes = TRANSPOSED if k % 7 == 0 else STRAIGHT
        edges += reads(nodes[-1], (names[-1], STRAIGHT), (names[-1 - k % 8], axes))
        names.append(f"n{k}")
    placement = place_restickifies(nodes, edges, inputs)
    assert placement.elements <= place_greedily(nodes, edges, inputs).elements
