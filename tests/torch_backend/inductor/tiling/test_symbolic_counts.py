"""Counts of tiles that are expressions of sizes: tiles of concrete sizes, loops of any length."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from spyre.errors import SpyreError
from spyre.torch_backend.inductor.base.compat import ir
from spyre.torch_backend.inductor.bundles.kernel_op import KernelLoop
from spyre.torch_backend.inductor.bundles.op_spec_form import spec_text, to_op_specs
from spyre.torch_backend.inductor.kernel.passes import loop_path, looped
from spyre.torch_backend.inductor.tiling.coarse_tile import coarse_tile
from spyre.torch_backend.inductor.tiling.groups import tile_extent
from tests.torch_backend.inductor.tiling.toy_backend import compiled

S0, S1 = sympy.symbols("s0 s1", integer=True, positive=True)


class Seen(Exception):
    """Everything of interest has been looked at; the toy backend cannot run symbolic loops."""


def chain(a, b):
    return (a + b) * a


def tiled(make, rows):
    """Operations after ``coarse_tile(operations, make(operations))``, rows being a symbol."""
    seen = []

    def tile(operations, names):
        try:
            coarse_tile(operations, make(list(operations)))
        except SpyreError as error:
            seen.append(error)
        else:
            seen.extend(op for op in operations if isinstance(op, ir.ComputedBuffer))
        raise Seen("Seen")

    arguments = [torch.randn(rows, 256) for _ in range(2)]
    for argument in arguments:
        torch._dynamo.mark_dynamic(argument, 0)
    with pytest.raises(Exception, match="Seen"):
        compiled(chain, *arguments, tile=tile)
    return seen


@pytest.mark.parametrize(
    ("extent", "count", "expected"),
    [
        (S0, FloorDiv(S0, 64), 64),
        (S0, sympy.floor(S0 / 16), 16),
        (64 * S1, S1, 64),
        (S0, S0, 1),
        (4096, 64, 64),
        (100, 64, None),
        (S0, S1, None),
        (S0, 64, None),
        (64, S0, None),
    ],
)
def test_extents_of_tiles(extent, count, expected):
    assert tile_extent(extent, count) == expected


def test_tiles_of_a_dim_only_a_launch_knows():
    operations = tiled(lambda ops: [(ops, FloorDiv(ops[0].data.ranges[0], 16))], 64)
    inside = [op for op in operations if hasattr(op, "loop_count")]
    assert len(inside) == 2
    for operation in inside:
        assert list(operation.data.ranges) == [16, 256]
        (count,) = operation.loop_count
        assert isinstance(count, FloorDiv)
        path = loop_path(operation)
        (loop,) = to_op_specs(looped([KernelLoop(sympy.Integer(1), ())], [path]))
        assert "floor(" in spec_text([loop])
        assert "/16)" in spec_text([loop])


def test_two_loops_over_symbols_and_numbers():
    def levels(ops):
        return [(FloorDiv(ops[0].data.ranges[0], 32), [0]), (4, [1])]

    operations = tiled(lambda ops: [(ops, levels(ops))], 64)
    inside = [op for op in operations if hasattr(op, "loop_count")]
    assert [list(op.data.ranges) for op in inside] == [[32, 64], [32, 64]]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda ops: [(ops, FloorDiv(ops[0].data.ranges[0], 24))], "SPY973"),
        (lambda ops: [(ops, 2, [0])], "SPY973"),
        (lambda ops: [(ops, 2, [1])], "SPY976"),
    ],
)
def test_what_is_refused(make, code):
    (error,) = tiled(make, 64)
    assert error.code == code
