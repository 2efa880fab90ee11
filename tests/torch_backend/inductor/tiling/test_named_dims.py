"""Names of dims over the operations of a graph, hints on operations, groups made of them."""

from __future__ import annotations

import pytest
import torch

from spyre.errors import SpyreError
from spyre.torch_backend.inductor.base.settings import checked_groups_fn
from spyre.torch_backend.inductor.hints import spyre_hint
from spyre.torch_backend.inductor.tiling.accesses import propagate_named_dims
from spyre.torch_backend.inductor.tiling.groups import (
    assign_dim_hints,
    hints_to_coarse_tile_groups,
    shares_of,
)
from tests.torch_backend.inductor.tiling.toy_backend import compiled


def names_in(function, *arguments):
    """``named_dims`` of the operations, in program order."""
    found = []

    def tile(operations, names):
        propagate_named_dims(operations, names)
        found.extend(op.named_dims for op in operations)

    compiled(function, *arguments, tile=tile)
    return found


def test_elementwise_and_reductions(named):
    found = names_in(lambda a, b: (a + b).sum(-1), named("AB"), named("AB"))
    assert found == [("A", "B"), ("A", "B")]


def test_places_of_a_reduction_are_its_results_then_what_it_reduces(named):
    found = names_in(lambda a: (a + 1).sum(0), named("AB"))
    assert found == [("A", "B"), ("B", "A")]


def test_transposed_and_broadcast(named):
    def function(a, v):
        return a.t() + v[:, None], v * 2

    found = names_in(function, named("AB"), named("B"))
    assert {tuple(sorted(entry)) for entry in found} == {("A", "B"), ("B",)}


def test_unnamed_operands_take_names_from_what_they_meet(named):
    found = names_in(lambda a, v: a * (v + 1), named("AB"), torch.randn(256))
    assert found == [("B",), ("A", "B")]


def test_the_first_operand_wins(named):
    from spyre.torch_backend.inductor.hints import declare_tensor_dim, name_tensor_dims

    declare_tensor_dim("other", 256)
    second = torch.randn(64, 256)
    name_tensor_dims(second, ["A", "other"])
    assert names_in(lambda a, b: a - b, named("AB"), second) == [("A", "B")]


def test_cut_and_merged_dims_have_none(named):
    assert names_in(lambda a: a[:32] * 2, named("AB")) == [(None, "B")]
    assert names_in(lambda a: a.reshape(-1) * 2, named("AB")) == [(None,)]


def test_nothing_is_named_without_names():
    assert names_in(lambda a: a + 1, torch.randn(64, 256)) == [(None, None)]


def hinted(function, *arguments):
    """Operations with hints, and the groups of them."""
    found = []

    def tile(operations, names):
        propagate_named_dims(operations, names)
        assign_dim_hints(operations)
        found.extend([list(operations), hints_to_coarse_tile_groups(operations)])

    compiled(function, *arguments, tile=tile)
    return found


def test_hints_of_operations(named):
    def function(a, v):
        with spyre_hint({"A": 2}), spyre_hint({"B": 4}, work_div={"A": 8}):
            return a + (v * 2)

    (scaled, added), _ = hinted(function, named("AB"), named("B"))
    outer, inner = added.dim_hints
    assert outer.number < inner.number
    assert (outer.slices, outer.work_div) == ((("A", 2),), ())
    assert (inner.slices, inner.work_div) == ((("B", 4),), (("A", 8),))
    assert (shares_of(added), shares_of(scaled)) == (((0, 8),), ())
    assert scaled.dim_hints == added.dim_hints


def test_work_division_alone_makes_no_loops(named):
    def function(a):
        with spyre_hint(work_div={"A": 8}):
            return a + 1

    (added,), groups = hinted(function, named("AB"))
    assert groups == []
    assert shares_of(added) == ((0, 8),)


def test_groups_follow_the_blocks(named):
    def function(a, b):
        with spyre_hint({"A": 2}):
            y = a + b
            with spyre_hint({"B": 4}):
                z = y * b
            with spyre_hint({"B": 2}):
                u = z - b
            w = u + 1
        with spyre_hint({"A": 2}):
            return w * 2

    _, groups = hinted(function, named("AB"), named("AB"))
    assert [(g.path, [level.count for level in g.levels]) for g in groups] == [
        ((0,), [2]),
        ((0, 0), [2, 4]),
        ((0, 1), [2, 2]),
        ((0,), [2]),
        ((1,), [2]),
    ]


def test_several_dims_in_a_block_are_loops_in_their_order(named):
    def function(a):
        with spyre_hint({"B": 4, "A": 2}):
            return a + 1

    _, (group,) = hinted(function, named("AB"))
    assert group.path == (0, 0)
    assert [(level.dim, level.count) for level in group.levels] == [("B", 4), ("A", 2)]


def module_level(operations):
    return []


def test_groups_functions_are_named_functions():
    assert checked_groups_fn(module_level) is module_level

    def nested(operations):
        return []

    class Callable:
        def __call__(self, operations):
            return []

    for wrong in (lambda operations: [], nested, Callable()):
        with pytest.raises(SpyreError) as caught:
            checked_groups_fn(wrong)
        assert caught.value.code == "SPY978"
