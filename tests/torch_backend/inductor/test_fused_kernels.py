"""Kernels of several operations: softmax within LX, tile by tile; a matmul in tiles of K."""

from __future__ import annotations

import pytest
import torch

import spyre
from spyre.hw.device.device import Device
from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel
from spyre.torch_backend.inductor.design_point import compiled_with, counted_call
from tests.torch_backend.inductor.bundles.op_spec_reader import kernel_of
from tests.torch_backend.inductor.bundles.spec_cases import MATRIX, arg, loop, op

ROWS, COLUMNS, TILES, CORES = 256, 192, 4, 16
TILE = ROWS // TILES
KEPT = ("0", "c0", "0")
"""Coordinates of a tensor with one element per row."""


def softmax():
    """Over the rows of a tile, everything between in LX."""
    space = {"c0": (TILE, CORES), "c1": (COLUMNS, 1)}
    whole, tile, kept = [COLUMNS // 64, ROWS, 64], [COLUMNS // 64, TILE, 64], [1, TILE, 64]
    step = COLUMNS // 64 * TILE // CORES * 128
    a, b, one, two = ({"lx": k * step} for k in range(4))

    def matrix(place, **more):
        return arg(-1, tile, MATRIX, place=place, **more)

    def rows(place, **more):
        return arg(-1, kept, KEPT, place=place, **more)

    x = arg(0, whole, MATRIX)
    y = arg(1, tile, MATRIX, out=True, within=whole)
    steps = [
        ("max", [x, rows(one, out=True)]),
        ("sub", [x, rows(one), matrix(a, out=True)]),
        ("exp", [matrix(a), matrix(b, out=True)]),
        ("sum", [matrix(b), rows(two, out=True)]),
        ("realdiv", [matrix(b), rows(two), y]),
    ]
    return [
        loop(
            TILES,
            *(op(n, space, t, tiled=["c0"], reduces=n in ("max", "sum")) for n, t in steps),
        )
    ]


def matmul_of_tiles(parts, cores=(4, 2, 1)):
    """acc = a@b of the first K tile, then acc += a@b of each other one, in a loop."""
    m, k, n = 64, 512, 128
    space = {"c0": (m, cores[0]), "c1": (n, cores[1]), "c2": (k // parts, cores[2])}
    columns = ("floor(c1/64)", "c0", "Mod(c1, 64)")
    inner = ("floor(c2/64)", "c0", "Mod(c2, 64)")

    def product(begin, place, **more):
        stick = k // parts // 64 * begin
        left = arg(0, [k // 64, m, 64], inner, place={"hbm": stick * m * 128})
        right = arg(
            1,
            [n // 64, k, 64],
            ("floor(c1/64)", "c2", "Mod(c1, 64)"),
            place={"hbm": k // parts * begin * 128},
        )
        target = arg(place[0], [n // 64, m, 64], columns, out=True, place=place[1])
        return op("batchmatmul", space, [left, right, target], reduces=True, **more)

    acc = (2, {"hbm": 0})
    temporary = (-1, {"pool": 0})

    def total(out, place=acc):
        return arg(place[0], [n // 64, m, 64], columns, place=place[1], out=out)

    outer = {"c0": (m, 8), "c1": (n, 2)}
    add = op("add", outer, [total(False), total(False, temporary), total(True)], tiled=["0"])
    body = [product(1, temporary, tiled=["c2"]), add]
    return [product(0, acc), loop(parts - 1, *body)]


def is_clean(parts, place):
    directory = write_bundle(parts, place)
    assert load_bundle(directory).check() == ()
    result = spyre.run(directory, device=Device(threads=1, sanitize=True, poison=True))
    assert result.sanitizer == ()
    return result


@pytest.mark.parametrize("unrolled", [False, True])
def test_softmax_in_lx(tmp_path, unrolled):
    torch.manual_seed(0)
    x = torch.randn(ROWS, COLUMNS).half().to("spyre")
    y = torch.empty_like(x)
    kernel = InductorKernel("softmax", kernel_of(softmax()), unrolled=unrolled)
    kernel.run(x, y)
    expected = torch.softmax(x.cpu().float(), -1)
    assert torch.allclose(y.cpu().float(), expected, atol=2e-3, rtol=2e-2)
    counters = is_clean(kernel.bundle, tmp_path).counters
    size_bytes = ROWS * COLUMNS * 2
    assert counters.hbm_read_bytes == 2 * size_bytes
    assert counters.hbm_written_bytes == size_bytes


@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize("cores", [(4, 2, 1), (2, 2, 2)])
def test_a_matmul_in_tiles_of_k(tmp_path, unrolled, cores):
    torch.manual_seed(0)
    a, b = torch.randn(64, 512).half().to("spyre"), torch.randn(512, 128).half().to("spyre")
    c = torch.empty(64, 128).half().to("spyre")
    kernel = InductorKernel("mm", kernel_of(matmul_of_tiles(4, cores)), unrolled=unrolled)
    kernel.run(a, b, c)
    expected = a.cpu().float() @ b.cpu().float()
    assert torch.allclose(c.cpu().float(), expected, atol=0.25, rtol=0.02)
    is_clean(kernel.bundle, tmp_path)


def projected_attention(x, wq, wk, wv, wo, cos, sin):
    def rotated(t):
        half = t.shape[-1] // 2
        return t * cos + torch.cat((-t[..., half:], t[..., :half]), -1) * sin

    q, k, v = ((x @ w).view(1, x.shape[1], -1, cos.shape[-1]).transpose(1, 2) for w in (wq, wk, wv))
    y = torch.nn.functional.scaled_dot_product_attention(
        rotated(q), rotated(k), v, is_causal=True, enable_gqa=True
    )
    return y.transpose(1, 2).reshape(1, x.shape[1], -1) @ wo


def test_a_product_over_heads_reads_a_copy_of_whole_sticks():
    """K of the last product are groups, heads and depth, which have separate pitches."""
    torch.manual_seed(0)
    tokens, heads, groups, depth, width = 64, 8, 2, 128, 256
    weights = [torch.randn(width, n * depth) / 16 for n in (heads, groups, groups)]
    given = [torch.randn(1, tokens, width), *weights, torch.randn(heads * depth, width) / 32]
    given += [torch.randn(1, tokens, depth) for _ in "12"]
    halves = [t.half() for t in given]
    form = compiled_with(projected_attention, {}, {})
    on_card = [t.to("spyre") for t in halves]
    counts = counted_call(form, on_card)
    want = projected_attention(*(t.float() for t in halves))
    torch.testing.assert_close(form(*on_card).cpu().float(), want, atol=0.01, rtol=0.02)
    # one element per stick would take 64 times the memory of the last product's factors
    assert counts.hbm_bytes < 8 * sum(t.nbytes for t in halves)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("sizes", [(3, 32, 2, 31), (3, 4, 5, 7), (2, 3, 8, 2, 40)])
def test_a_right_factor_whose_rows_have_several_pitches(sizes, is_compiled):
    """The gradient of a linear map's weight over an input of many dims."""

    def gradient(grad, x):
        return grad.flatten(0, -2).t() @ x.flatten(0, -2)

    torch.manual_seed(0)
    given = [torch.randn(*sizes[:-1], n).half() for n in (63, sizes[-1])]
    run = torch.compile(gradient) if is_compiled else gradient
    found = run(*(t.to("spyre") for t in given)).cpu().float()
    torch.testing.assert_close(found, gradient(*(t.float() for t in given)), atol=0.2, rtol=0.02)
