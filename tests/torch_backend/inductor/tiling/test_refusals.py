"""Refusals of coarse tiling, before any change: each rule is broken and noticed."""

from __future__ import annotations

import pytest
import sympy
import torch

from spyre.errors import UnsupportedError
from spyre.torch_backend.inductor.base.layouts import FixedTiledLayout
from spyre.torch_backend.inductor.hints import declare_tensor_dim, name_tensor_dims, spyre_hint
from spyre.torch_backend.inductor.tiling.coarse_tile import coarse_tile
from spyre.torch_backend.inductor.tiling.groups import TileGroup, TileLevel
from tests.torch_backend.inductor.tiling.toy_backend import compiled, refused


def chain(a, b, c):
    return ((a + b) * c) - b


def tiling(make, **options):
    """A pass that tiles ``make(operations)``."""

    def tile(operations, names):
        coarse_tile(operations, make(list(operations)), **options)

    return tile


def test_the_keyword_gives_flat_groups_their_dims(abc):
    def tile(operations, names):
        first, second, third = list(operations)
        coarse_tile(operations, [([first], 4), ([second, third], 2, [0])], tiled_dims=[1])

    found = compiled(chain, *abc, tile=tile)
    assert torch.equal(found.result, chain(*abc))
    dims = [op.loop_tiled_dims for op in found.operations if hasattr(op, "loop_tiled_dims")]
    assert dims == [[[1]], [[0]], [[0]]]


@pytest.mark.parametrize(
    "make",
    [
        lambda ops: [(ops,)],
        lambda ops: [(ops, 2, [0], 1)],
        lambda ops: [[ops, 2]],
        lambda ops: [([], 2)],
        lambda ops: [(ops, [])],
        lambda ops: [(ops, 0)],
        lambda ops: [(ops, True)],
        lambda ops: [(ops, 2.0)],
        lambda ops: [(ops, 2, [])],
        lambda ops: [(ops, 2, [0, 0])],
        lambda ops: [(ops, 2, [-1])],
        lambda ops: [(ops, 2, [2])],
        lambda ops: [(ops, 2, "A")],
        lambda ops: [(ops, [(2, [0])], [1])],
        lambda ops: [(ops, [2, 4])],
        lambda ops: [(ops[:2], 2), (ops[1:], 2)],
        lambda ops: [(ops[:1], 2), TileGroup((1,), (TileLevel(2, 0),), (ops[1],))],
    ],
)
def test_groups_of_another_form(abc, make):
    assert refused(chain, *abc, tile=tiling(make)).code == "SPY970"


def test_operations_of_another_graph(abc):
    kept = []
    compiled(chain, *abc, tile=lambda operations, names: kept.extend(operations))
    error = refused(chain, *abc, tile=tiling(lambda ops: [(kept, 2)]))
    assert error.code == "SPY970"
    assert "not in the graph" in str(error)


@pytest.mark.parametrize(
    "make",
    [
        lambda ops: [([ops[0], ops[2]], 2)],
        lambda ops: [([ops[1], ops[0]], 2)],
        lambda ops: [
            TileGroup((0, 0), (TileLevel(2, 0), TileLevel(2, 1)), (ops[0],)),
            TileGroup((0, 1), (TileLevel(2, 0), TileLevel(2, 1)), (ops[2],)),
        ],
    ],
    ids=["gap", "order", "gap in the outer loop"],
)
def test_groups_with_gaps(abc, make):
    error = refused(chain, *abc, tile=tiling(make))
    assert isinstance(error, RuntimeError)
    assert error.code == "SPY971"


def test_the_gap_is_named(abc):
    error = refused(chain, *abc, tile=tiling(lambda ops: [([ops[0], ops[2]], 2)]))
    assert "between them buf1" in str(error)


@pytest.mark.parametrize(("count", "dims"), [(3, [0]), (48, [0]), (7, [1])])
def test_counts_that_do_not_go_with_the_extent(abc, count, dims):
    error = refused(chain, *abc, tile=tiling(lambda ops: [(ops, count, dims)]))
    assert error.code == "SPY973"
    assert f"dim {dims[0]}" in str(error)
    assert str(count) in str(error)


def test_counts_of_two_levels_of_one_dim(abc):
    error = refused(chain, *abc, tile=tiling(lambda ops: [(ops, [(16, [0]), (8, [0])])]))
    assert error.code == "SPY973"


@pytest.mark.parametrize(("dtype", "fits", "cuts"), [(torch.float16, 4, 8), (torch.float32, 8, 16)])
def test_tiles_of_whole_sticks(named, dtype, fits, cuts):
    arguments = [named("AB", dtype) for _ in range(3)]
    compiled(chain, *arguments, tile=tiling(lambda ops: [(ops, fits, [1])]))
    error = refused(chain, *arguments, tile=tiling(lambda ops: [(ops, cuts, [1])]))
    assert error.code == "SPY973"
    assert "sticks" in str(error)
    assert f"a multiple of {256 // fits}" in str(error)


def test_sticks_of_what_is_read(named):
    """The dim is not along the sticks of the result, but of the operand."""
    declare_tensor_dim("C", 64)
    operand = named("AB")

    def function(x):
        return x.sum(0)

    error = refused(function, operand, tile=tiling(lambda ops: [(ops[:1], 16, [0])]))
    assert error.code == "SPY973"


def test_a_hint_that_does_not_divide(abc):
    def function(a, b, c):
        with spyre_hint({"A": 3}):
            return a + b

    error = refused(function, *abc)
    assert error.code == "SPY973"
    assert "(A)" in str(error)


def test_counts_known_only_at_run_time(abc):
    """For a dim of known extent, such a count need not divide it."""
    count = sympy.Symbol("s0", integer=True, positive=True)
    error = refused(chain, *abc, tile=tiling(lambda ops: [(ops, count)]))
    assert error.code == "SPY973"
    assert "found: s0" in str(error)


def test_a_reduction_nothing_can_join(abc):
    def function(a, b, c):
        with spyre_hint({"B": 2}):
            return (a + b).argmax(-1)

    error = refused(function, *abc)
    assert (error.code, type(error)) == ("SPY976", UnsupportedError)
    assert "argmax" in str(error)


def test_two_loops_over_what_is_reduced(abc):
    def function(a, b, c):
        return a.sum()

    error = refused(function, *abc, tile=tiling(lambda ops: [(ops[:1], [(2, [0]), (2, [1])])]))
    assert error.code == "SPY976"
    assert "dims 0, 1" in str(error)


def test_a_call_to_the_host_in_a_loop(abc):
    def function(a, b, c):
        return torch.sort(a + b, -1)[0]

    assert refused(function, *abc, tile=tiling(lambda ops: [(ops, 2)])).code == "SPY976"


def test_a_layout_whose_tiled_dim_is_not_on_the_card(abc):
    def tile(operations, names):
        layout = operations[0].layout
        device = layout.device_layout
        odd = type(device)((64, 256, 1, 32), (3, 5, 7, 1), device.device_dtype)
        operations[0].layout = FixedTiledLayout(
            layout.device, layout.dtype, layout.size, layout.stride, odd
        )
        coarse_tile(operations, [(list(operations)[:2], 2)])

    with pytest.raises(Exception, match="SPY976"):
        compiled(chain, *abc, tile=tile)


@pytest.mark.parametrize(
    "function",
    [
        lambda y, a: y.flip(0) + a,
        lambda y, a: y.reshape(-1)[:64] + y.reshape(-1)[64:128],
        lambda y, a: y[0] + a,
        lambda y, a: y.roll(1, 0) + a,
        lambda y, a: y.reshape(256, 64).sum(0),
        lambda y, a: y + torch.arange(64)[:, None],
        lambda y, a: y[torch.arange(63, -1, -1)] + a,
        lambda y, a: a[:32].repeat(2, 1) + y,
    ],
    ids=["flip", "flat", "row", "roll", "reshape", "position", "gather", "uneven"],
)
def test_operations_that_go_beyond_their_tile(named, function):
    """Each would read results of other iterations, or numbers that depend on the iteration."""

    def hinted(a, b):
        with spyre_hint({"A": 2}):
            return function(a + b, a)

    error = refused(hinted, named("AB"), named("AB"))
    assert error.code == "SPY977"
    assert "buf" in str(error)


def test_reading_all_of_what_an_inner_loop_makes_of_an_outer_tile(named):
    def hinted(a, b):
        with spyre_hint({"A": 2}):
            with spyre_hint({"B": 2}):
                y = a + b
            return y.flip(0)

    assert refused(hinted, named("AB"), named("AB")).code == "SPY977"


def test_changing_in_every_iteration_what_the_loop_reads():
    """The tensor has no dim A, so each iteration would add anew."""
    declare_tensor_dim("A", 64)
    a, total = torch.randn(64, 256), torch.zeros(32)
    name_tensor_dims(a, ["A", None])

    def function(a, total):
        with spyre_hint({"A": 2}):
            total.add_(1)
            return a + 1

    def tile(operations, names):
        operations[:] = sorted(operations, key=lambda op: isinstance(op.layout, FixedTiledLayout))
        levels = (TileLevel(2, "A"),)
        for op in operations:
            op.named_dims = ("A", None) if len(op.data.ranges) == 2 else (None,)
        coarse_tile(operations, [TileGroup((0,), levels, tuple(operations))])

    error = refused(function, a, total, tile=tile)
    assert error.code == "SPY977"
    assert "in every iteration" in str(error)


def test_an_undeclared_name(abc):
    def function(a, b, c):
        with spyre_hint({"nowhere": 2}):
            return a + b

    assert refused(function, *abc).code == "SPY974"


def test_a_dim_nothing_has_is_reported(abc):
    declare_tensor_dim("elsewhere", 3)

    def function(a, b, c):
        with spyre_hint({"elsewhere": 3}):
            return a + b

    with pytest.warns(UserWarning, match="no operation among .* has a dim 'elsewhere'"):
        found = compiled(function, *abc)
    assert not any(hasattr(op, "loop_group_id") for op in found.operations)
