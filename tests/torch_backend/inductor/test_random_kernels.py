"""Random layouts, work divisions, tiles and places of intermediate results: equal bits."""

from __future__ import annotations

import msgspec
import torch
from hypothesis import given, strategies as st

from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel
from tests.examples import examples
from tests.torch_backend.inductor.bundles.op_spec_reader import kernel_of
from tests.torch_backend.inductor.bundles.spec_cases import default_arg, loop, op


class Plan(msgspec.Struct, frozen=True):
    """(x + y)·x of ``shape``: dim orders of the tensors, tiles and cores per dim."""

    shape: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]
    tiles: tuple[int, ...]
    cores: tuple[int, ...]
    outer_first: bool
    place: str
    unrolled: bool

    @property
    def tile(self):
        return tuple(n // t for n, t in zip(self.shape, self.tiles, strict=True))


def divisors(number, limit):
    return [n for n in range(1, limit + 1) if number % n == 0]


@st.composite
def plans(draw):
    rank = draw(st.integers(1, 3))
    shape = [draw(st.sampled_from([2, 4, 6, 12])) for _ in range(rank - 1)]
    shape.append(draw(st.sampled_from([64, 100, 256, 384])))
    last = rank - 1
    orders = [(*draw(st.permutations(range(last))), last) for _ in range(3)]
    sticks = -(-shape[-1] // 64)
    whole = shape[-1] % 64 == 0
    units = [*shape[:-1], sticks]
    tiles = [draw(st.sampled_from(divisors(n, 4))) for n in units]
    if not whole:
        tiles[-1] = 1
    cores, left = [], 32
    for unit, tile in zip(units, tiles, strict=True):
        cores.append(draw(st.sampled_from(divisors(unit // tile, min(left, 4)))))
        left //= cores[-1]
    return Plan(
        tuple(shape),
        tuple(orders),
        tuple(tiles),
        tuple(cores),
        draw(st.booleans()),
        draw(st.sampled_from(["lx", "pool"])),
        draw(st.booleans()),
    )


def specs_of(plan):
    symbols = [f"c{k}" for k in range(len(plan.shape))]
    space = dict(zip(symbols, zip(plan.tile, plan.cores, strict=True), strict=True))
    loops = [(s, t) for s, t in zip(symbols, plan.tiles, strict=True) if t > 1]
    if not plan.outer_first:
        loops.reverse()
    tiled = [s for s, _ in loops]

    def whole(index, order, **more):
        return default_arg(index, plan.shape, symbols, order=order, **more)

    def between(out):
        place = {plan.place: 384}
        more = {"per_tile_fixed": True} if tiled else {}
        return default_arg(-1, plan.tile, symbols, place=place, out=out, **more)

    x, y, z = plan.orders
    body = [
        op("add", space, [whole(0, x), whole(1, y), between(True)], tiled=tiled),
        op("mul", space, [between(False), whole(0, x), whole(2, z, out=True)], tiled=tiled),
    ]
    for _, count in reversed(loops):
        body = [loop(count, *body)]
    return body


def in_order(host, order):
    strides = contiguous_strides(host.shape)
    layout = SpyreTensorLayout.from_dim_order(tuple(host.shape), strides, "float16", order)
    return host.to("spyre").to(device_layout=layout)


@examples(40)
@given(plans())
def test_any_form_gives_the_same_bits(tmp_path_factory, plan):
    torch.manual_seed(0)
    x, y = torch.randn(plan.shape).half(), torch.randn(plan.shape).half()
    kernel = InductorKernel("kernel", kernel_of(specs_of(plan)), unrolled=plan.unrolled)
    assert load_bundle(write_bundle(kernel.bundle, tmp_path_factory.mktemp("kernel"))).check() == ()
    placed = [in_order(t, o) for t, o in zip((x, y, x), plan.orders, strict=True)]
    kernel.run(*placed)
    x, y = x.to("spyre"), y.to("spyre")
    assert torch.equal(placed[2].cpu(), ((x + y) * x).cpu())
