"""Loop scheduler nodes: nesting, contiguity, counts, and Inductor's operations on them."""

from __future__ import annotations

import pytest
import torch

from spyre.errors import SpyreError
from spyre.torch_backend.inductor.hooks.scheduling import (
    CountedLoopSchedulerNode,
    build_loop_scheduler_nodes,
    leaf_nodes,
)
from spyre.torch_backend.inductor.tiling.coarse_tile import coarse_tile
from spyre.torch_backend.inductor.tiling.groups import TileGroup, TileLevel
from tests.torch_backend.inductor.tiling import toy_backend
from tests.torch_backend.inductor.tiling.toy_backend import compiled


def chain(a, b, c):
    return ((a + b) * c) - b


@pytest.fixture
def nodes(abc, monkeypatch):
    """Scheduler nodes of three operations, each in a loop nest as ``stamps`` say."""

    def make(*stamps):
        seen = []
        monkeypatch.setattr(
            toy_backend, "build_loop_scheduler_nodes", lambda n: seen.extend(n) or n
        )
        monkeypatch.setattr(toy_backend, "launch", lambda number, tensors: None)

        def tile(operations, names):
            for op, (path, counts) in zip(operations, stamps, strict=True):
                if path:
                    op.loop_group_id, op.loop_count = path, counts
                    op.loop_tiled_dims = [[] for _ in path]

        compiled(chain, *abc, tile=tile)
        return seen

    return make


def shape(built):
    """Loops as (count, body), operations by name."""
    found = []
    for node in built:
        is_loop = isinstance(node, CountedLoopSchedulerNode)
        found.append((int(node.loop_count), shape(node.snodes)) if is_loop else node.get_name())
    return found


def test_one_loop(nodes):
    found = nodes(((0,), [2]), ((0,), [2]), ((), []))
    assert shape(build_loop_scheduler_nodes(found)) == [(2, ["op0", "op1"]), "op2"]


def test_neighbours_of_different_groups_are_different_loops(nodes):
    found = nodes(((0,), [2]), ((1,), [2]), ((1,), [2]))
    assert shape(build_loop_scheduler_nodes(found)) == [(2, ["op0"]), (2, ["op1", "op2"])]


def test_nested_loops_of_single_operations(nodes):
    found = nodes(((0, 0), [2, 4]), ((0, 1), [2, 8]), ((0,), [2]))
    built = build_loop_scheduler_nodes(found)
    assert shape(built) == [(2, [(4, ["op0"]), (8, ["op1"]), "op2"])]
    assert [n.get_name() for n in leaf_nodes(built[0])] == ["op0", "op1", "op2"]


def test_three_levels(nodes):
    found = nodes(((0, 0, 0), [2, 4, 8]), ((0, 0, 0), [2, 4, 8]), ((0, 0), [2, 4]))
    assert shape(build_loop_scheduler_nodes(found)) == [(2, [(4, [(8, ["op0", "op1"]), "op2"])])]


@pytest.mark.parametrize(
    ("stamps", "code"),
    [
        ([((0,), [2]), ((), []), ((0,), [2])], "SPY971"),
        ([((0,), [2]), ((1,), [2]), ((0,), [2])], "SPY971"),
        ([((0, 0), [2, 4]), ((0,), [2]), ((0, 0), [2, 4])], "SPY971"),
        ([((0,), [2]), ((0,), [4]), ((), [])], "SPY972"),
        ([((0, 0), [2, 4]), ((0, 0), [2, 8]), ((), [])], "SPY972"),
        ([((0, 0), [2, 4]), ((0, 1), [4, 4]), ((), [])], "SPY972"),
        ([((0, 0), [2, 4]), ((0, 0), [2]), ((), [])], "SPY972"),
    ],
)
def test_torn_groups_and_other_counts(nodes, stamps, code):
    found = nodes(*stamps)
    with pytest.raises(SpyreError) as caught:
        build_loop_scheduler_nodes(found)
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.code == code
    assert "op1" in str(caught.value) or "buf1" in str(caught.value)


def test_fusing_first_is_noticed(nodes):
    from torch._inductor.scheduler import FusedSchedulerNode

    found = nodes(((0,), [2]), ((1,), [4]), ((), []))
    fused = FusedSchedulerNode(found[0].scheduler, found[:2])
    with pytest.raises(SpyreError, match="SPY971"):
        build_loop_scheduler_nodes([fused, found[2]])


def test_loops_stay_whole(nodes):
    found = nodes(((0, 0), [2, 4]), ((0, 0), [2, 4]), ((), []))
    outer, last = build_loop_scheduler_nodes(found)
    assert outer.unpack() == [outer]
    assert not CountedLoopSchedulerNode.can_fuse(outer, last)
    names = outer.scheduler.name_to_fused_node
    assert names["op0"] is names["op1"] is outer


def test_the_wrapper_calls_one_kernel_per_loop(abc):
    def tile(operations, names):
        levels = (TileLevel(2, 0), TileLevel(4, 1))
        coarse_tile(operations, [TileGroup((0, 0), levels, tuple(operations))])

    found = compiled(chain, *abc, tile=tile)
    assert torch.equal(found.result, chain(*abc))
    assert found.code[0].count("toy.launch(") == 1
