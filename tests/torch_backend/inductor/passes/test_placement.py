"""Restickify placement against every assignment there is, and examples worked by hand."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.torch_backend.inductor.passes.restickify import (
    SPARSE,
    LaneNode,
    LaneUse,
    device_elements,
    place_restickifies,
)
from tests.examples import examples

STRAIGHT, TRANSPOSED = (0, 1), (1, 0)
BOTH = (1, 0)
"""Lanes of every operation in the examples, and the order in which they are preferred."""


def reads(consumer, *operands):
    """Uses of ``consumer``: (producer, its sizes, its lanes, axes it is seen through)."""
    return [
        LaneUse(
            producer,
            consumer,
            tuple(
                tuple(
                    0.0 if have == axes[own] else float(device_elements(sizes, have, 64))
                    for own in BOTH
                )
                for have in lanes
            ),
        )
        for producer, sizes, lanes, axes in operands
    ]


def sum_with_transpose(a_sizes, b_sizes):
    """y = a + b.T with the standard layouts; candidates: a's stick, then b.T's."""
    operands = ("a", a_sizes, (1,), STRAIGHT), ("b", b_sizes, (1,), TRANSPOSED)
    return [LaneNode("y", BOTH)], reads("y", *operands)


def cost_of(nodes, uses, lanes):
    """Elements to move and computed beyond the minimum under ``lanes``, by name."""
    places = {node.name: node.lanes.index(lanes[node.name]) for node in nodes}
    moved = sum(use.costs[places.get(use.producer, 0)][places[use.consumer]] for use in uses)
    return moved + sum(node.work[places[node.name]] for node in nodes if node.work)


def test_a_sum_with_a_transpose_keeps_the_first_stick():
    graph = sum_with_transpose((128, 128), (128, 128))
    lanes = place_restickifies(*graph)
    assert lanes == {"y": 1}
    assert cost_of(*graph, lanes) == 128 * 128


def test_the_smaller_operand_is_restickified():
    """a [96, 65] holds 96 x 128 elements, b [65, 96] holds 65 x 128."""
    graph = sum_with_transpose((96, 65), (65, 96))
    assert place_restickifies(*graph) == {"y": 1}
    assert cost_of(*graph, {"y": 1}) == 65 * 128
    assert place_restickifies(*sum_with_transpose((65, 96), (96, 65))) == {"y": 0}


def chain():
    """u = a + b.T is a tie; v = u + c.T then wants u as c.T has it."""
    size = (128, 128)
    uses = [
        *reads("u", ("a", size, (1,), STRAIGHT), ("b", size, (1,), TRANSPOSED)),
        *reads("v", ("u", size, BOTH, STRAIGHT), ("c", size, (1,), TRANSPOSED)),
        *reads("w", ("v", size, BOTH, STRAIGHT), ("c", size, (1,), TRANSPOSED)),
    ]
    return [LaneNode(name, BOTH) for name in "uvw"], uses


def test_the_beam_sees_further_than_one_operation():
    size = 128 * 128
    greedy, beam = place_restickifies(*chain(), beam=1), place_restickifies(*chain())
    assert greedy == {"u": 1, "v": 1, "w": 1}
    assert cost_of(*chain(), greedy) == 3 * size
    assert beam == {"u": 0, "v": 0, "w": 0}
    assert cost_of(*chain(), beam) == size


def test_a_beam_of_two_is_enough_for_a_chain():
    """Of assignments that differ in values nobody reads any more, one stays."""
    nodes, uses, size = [], [], (64, 64)
    for k in range(40):
        nodes.append(LaneNode(f"x{k + 1}", BOTH))
        axes = TRANSPOSED if k % 3 else STRAIGHT
        before = (f"x{k}", size, BOTH if k else (1,), axes)
        uses += reads(f"x{k + 1}", before, ("c", size, (1,), TRANSPOSED if k > 20 else STRAIGHT))
    narrow = place_restickifies(nodes, uses, beam=2)
    assert narrow == place_restickifies(nodes, uses, beam=4096)
    greedy = place_restickifies(nodes, uses, beam=1)
    assert cost_of(nodes, uses, narrow) < cost_of(nodes, uses, greedy)


def test_work_counts_like_moves():
    """Moving u for y is dear in its first lane, whatever y's is; or computing in the other."""
    u, y = LaneNode("u", BOTH), LaneNode("y", BOTH)
    uses = [LaneUse("a", "u", ((0.0, 5.0),)), LaneUse("u", "y", ((9.0, 9.0), (0.0, 0.0)))]
    assert place_restickifies([u, y], uses) == {"u": 0, "y": 1}
    heavier = [replace(u, work=(0, 5)), y]
    assert place_restickifies(heavier, uses) == {"u": 1, "y": 1}


def test_nothing_to_move():
    y = LaneNode("y", (1,))
    assert place_restickifies([y], [LaneUse("a", "y", ((0.0,),))]) == {"y": 1}
    assert place_restickifies([], []) == {}


def test_device_elements():
    assert device_elements((96, 65), 1, 64) == 96 * 128
    assert device_elements((96, 65), 0, 64) == 65 * 128
    assert device_elements((3, 5), SPARSE, 64) == 15 * 64


LANES = st.lists(st.sampled_from([SPARSE, 0, 1, 2]), min_size=1, max_size=3, unique=True)


@st.composite
def graphs(draw):
    lanes = {f"i{k}": (0,) for k in range(draw(st.integers(1, 3)))}
    nodes, uses = [], []
    for k in range(draw(st.integers(1, 6))):
        own = tuple(draw(LANES))
        work = tuple(draw(st.integers(0, 9)) for _ in own) if draw(st.booleans()) else ()
        for _ in range(draw(st.integers(1, 3))):
            producer = draw(st.sampled_from(sorted(lanes)))
            row = st.tuples(*[st.integers(0, 9).map(float)] * len(own))
            uses.append(LaneUse(producer, f"n{k}", draw(st.tuples(*[row] * len(lanes[producer])))))
        nodes.append(LaneNode(f"n{k}", own, work))
        lanes[f"n{k}"] = own
    return nodes, uses


@examples(300)
@given(graphs(), st.sampled_from([1, 2, 64, 4096]))
def test_against_every_assignment(graph, beam):
    nodes, _ = graph
    names = [node.name for node in nodes]
    every = itertools.product(*(node.lanes for node in nodes))
    best = min(cost_of(*graph, dict(zip(names, lanes, strict=True))) for lanes in every)
    lanes = place_restickifies(*graph, beam=beam)
    assert cost_of(*graph, lanes) >= best
    assert lanes == place_restickifies(*graph, beam=beam)
    if beam == 4096:  # as wide as there are assignments
        assert cost_of(*graph, lanes) == best


@given(graphs())
def test_a_beam_of_one_takes_the_first_least_lane_of_each_node(graph):
    nodes, uses = graph
    lanes = {}
    for k, node in enumerate(nodes):
        known = {n.name for n in nodes[: k + 1]}
        before = [use for use in uses if use.consumer in known]
        costs = [cost_of(nodes[: k + 1], before, lanes | {node.name: lane}) for lane in node.lanes]
        lanes[node.name] = node.lanes[costs.index(min(costs))]
    assert place_restickifies(*graph, beam=1) == lanes


def test_a_thousand_operations():
    nodes, uses, size = [], [], (512, 512)
    names = [f"i{k}" for k in range(8)]
    for k in range(1000):
        axes = TRANSPOSED if k % 7 == 0 else STRAIGHT
        operands = ((names[-1], STRAIGHT), (names[-1 - k % 8], axes))
        rows = ((n, size, (1,) if n.startswith("i") else BOTH, a) for n, a in operands)
        uses += reads(f"n{k}", *rows)
        nodes.append(LaneNode(f"n{k}", BOTH))
        names.append(f"n{k}")
    beam, greedy = place_restickifies(nodes, uses), place_restickifies(nodes, uses, beam=1)
    assert cost_of(nodes, uses, beam) <= cost_of(nodes, uses, greedy)
