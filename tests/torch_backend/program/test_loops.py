"""Loops of a program over the elements along a dim."""

from __future__ import annotations

import pytest
import torch

from spyre.torch_backend.eager.launch import run
from spyre.torch_backend.program import (
    DeviceOp,
    Lowering,
    LoweringError,
    OpKind,
    Value,
    selected,
    tile_of,
)

STEPS, WIDTH = 5, 40


def rows():
    return torch.arange(float(STEPS * WIDTH)).reshape(STEPS, WIDTH)


def copy(low: Lowering, value: Value, into: Value) -> None:
    low.builder.add(DeviceOp(OpKind.POINTWISE, "identity", (value,), into))


def running_sums(low: Lowering, x: Value, is_backwards: bool) -> Value:
    sums = low.builder.scratch(x.sizes, x.dtype, 1)
    total = low.pointwise("sub", selected(x, 0, 0), selected(x, 0, 0))
    with low.builder.loop(x.sizes[0]):
        more = low.pointwise("add", total, tile_of(x, 0, is_backwards))
        low.builder.output_into(more, total)
        copy(low, total, tile_of(sums, 0, is_backwards))
    return sums


@pytest.mark.parametrize("is_backwards", [False, True])
def test_running_sums(is_backwards):
    x = rows()
    (found,) = run("sums", running_sums, [x.to("spyre")], (is_backwards,))
    expected = x.flip(0).cumsum(0).flip(0) if is_backwards else x.cumsum(0)
    assert torch.equal(found.cpu(), expected)


def test_one_step():
    x = rows()[:1]
    (found,) = run("sums", running_sums, [x.to("spyre")], (False,))
    assert torch.equal(found.cpu(), x)


def doubled(low: Lowering, x: Value) -> list[Value]:
    """In steps, of a value made before them, whose memory nothing in a step may take."""
    two = low.pointwise("add", x, x)
    first, second = (low.builder.scratch(x.sizes, x.dtype, 1) for _ in range(2))
    with low.builder.loop(x.sizes[0]):
        row = low.copy(tile_of(two, 0))
        copy(low, low.pointwise("neg", low.pointwise("neg", row)), tile_of(first, 0))
    with low.builder.loop(x.sizes[0]):
        copy(low, tile_of(first, 0), tile_of(second, 0, is_backwards=True))
    return [second, low.pointwise("neg", second)]


def test_memory_that_a_loop_shares_with_the_rest():
    x = rows()
    found, negative = run("doubled", doubled, [x.to("spyre")])
    assert torch.equal(found.cpu(), 2 * x.flip(0))
    assert torch.equal(negative.cpu(), -2 * x.flip(0))


def test_listing():
    low = Lowering()
    running_sums(low, low.builder.scratch((STEPS, WIDTH), "float32", 1), False)
    listing = str(low.builder).splitlines()
    assert listing[1] == f"{STEPS} times:"
    assert all(line.startswith("    ") for line in listing[2:])


def test_tiles_are_no_parts_of_sticks():
    low = Lowering()
    with pytest.raises(LoweringError, match="tiles of one element along"):
        tile_of(low.builder.scratch((STEPS, WIDTH), "float32", 1), 1)
