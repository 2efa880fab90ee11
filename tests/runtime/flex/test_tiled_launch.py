"""Tiled launches through streams: control blocks, results, faults in the middle."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.errors import LaunchError, StreamError
from spyre.hw.device.device import Device
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.tiling.tile_plan import TilingOptions
from tests.runtime.flex import kernels
from tests.runtime.flex.faults import failing

K, N, TILE, ROWS = 256, 128, 1024, 4096
EVERYTHING = TilingOptions(True, "pad", "accumulate")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def card():
    device = FlexDevice(Device(threads=1))
    yield device
    device.close()


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float16)


def matmul_tensors(card):
    a, b = card.to_device(normal(ROWS, K), "A"), card.to_device(normal(K, N), "B")
    return [a, b, card.empty((ROWS, N), name="C")]


@pytest.fixture(scope="module")
def tile(directory):
    return kernels.product(directory / "tile", TILE, K, N, {"mb": 8})


def test_matmul_on_a_tile_of_rows(card, tile, directory):
    """Four iterations: 8 control blocks and 4 host operations in order, and the same bits."""
    tensors = matmul_tensors(card)
    plan = kernels.load(card, tile)
    card.synchronize()
    with card.recording() as commands:
        card.default_stream.launch(plan, tensors)
    assert len(commands.control_blocks) == 8
    assert len(commands.host_operations) == 4
    kinds = [c.block.kind for c in commands.control_blocks]
    assert kinds == ["dma to device", "compute"] * 4
    rows = [c.block.places[2].address.offset for c in commands.control_blocks[1::2]]
    assert rows == [k * TILE * 128 for k in range(4)]
    assert len({str(c.block.places[1].address) for c in commands.control_blocks[1::2]}) == 4

    whole = kernels.load(card, kernels.product(directory / "whole", ROWS, K, N, {"mb": 8}))
    other = card.empty((ROWS, N), name="C")
    card.default_stream.launch(whole, [*tensors[:2], other])
    card.synchronize()
    found, expected = (card.device.bytes_of(t.resolved) for t in (tensors[2], other))
    assert found.any()
    assert (found == expected).all()


def test_unobserved_launch_gives_the_same(card, tile):
    tensors = matmul_tensors(card)
    plan = kernels.load(card, tile)
    card.default_stream.launch(plan, tensors)
    card.synchronize()
    first = card.device.bytes_of(tensors[2].resolved).copy()
    card.device.bytes_of(tensors[2].resolved)[:] = 0
    with card.recording():
        card.default_stream.launch(plan, tensors)
    assert (card.device.bytes_of(tensors[2].resolved) == first).all()


def test_tiling_can_be_forbidden(card, tile, monkeypatch):
    tensors, plan = matmul_tensors(card), kernels.load(card, tile)
    card.synchronize()
    with pytest.raises(LaunchError, match="SPY850"):
        card.default_stream.launch(plan, tensors, TilingOptions(allow_tiled_launch=False))
    monkeypatch.setenv("SPYRE_ALLOW_TILED_LAUNCH", "0")
    with pytest.raises(LaunchError, match="SPY850"):
        card.default_stream.launch(plan, tensors)
    assert card.default_stream.query()
    assert not card.device.bytes_of(tensors[2].resolved).any()


@pytest.mark.parametrize("rows", [1000, 1500])
def test_remainders_and_reductions_by_policy(card, tile, rows):
    plan = kernels.load(card, tile)
    a, b = normal(rows + TILE, 2 * K), normal(2 * K, N)
    tensors = [card.to_device(a), card.to_device(b), card.empty((rows + TILE, N))]
    with pytest.raises(LaunchError, match="SPY85"):
        card.default_stream.launch(plan, tensors)
    before = card.allocator.statistics().allocated_bytes.current
    card.default_stream.launch(plan, tensors, EVERYTHING)
    found = card.to_host(tensors[2]).to_values()
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(found, expected, atol=np.abs(expected).max() * 2**-7)
    assert card.allocator.statistics().allocated_bytes.current <= before + 2 * 128


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("iteration", range(4))
def test_fault_at_every_step(card, tile, place, iteration):
    """Later tiles do not run, the error comes once, memory is accounted, other streams go on."""
    tensors, plan = matmul_tensors(card), kernels.load(card, tile)
    other, mine = card.streams.take(), card.streams.take()
    card.synchronize()
    before = card.allocator.statistics().allocated_bytes.current
    elsewhere = matmul_tensors(card)
    card.synchronize()
    with card.scheduler.held():
        mine.launch(failing(plan, place, iteration), tensors)
        mine.launch(plan, tensors)
        other.launch(plan, elsewhere)
    with pytest.raises(RuntimeError, match=f"{iteration}$"):
        mine.synchronize()
    other.synchronize()
    card.synchronize()
    tiles = card.to_host(tensors[2]).to_values().reshape(4, TILE, N).any(axis=(1, 2))
    assert tiles.tolist() == [k < iteration for k in range(4)]
    assert (card.to_host(elsewhere[2]).to_values() != 0).any()
    with pytest.raises(StreamError, match="SPY870"):
        mine.launch(plan, tensors)
    del elsewhere
    assert card.allocator.statistics().allocated_bytes.current <= before + 64 * 128


def test_a_device_fault_in_the_middle_of_a_batch(card, directory, tile):
    """A tile whose correction leads outside of memory stops the launch there."""
    tensors, plan = matmul_tensors(card), kernels.load(card, tile)
    host, copy, compute = plan.steps

    def damaged(context, first, last):
        context.buffers["correction"][2, 0] = 1 << 50
        copy.copy(context, first, last)

    broken = replace(plan, steps=(host, replace(copy, copy=damaged), compute))
    card.default_stream.launch(broken, tensors)
    with pytest.raises(LaunchError):
        card.synchronize()


def test_thousand_tiles_are_one_call(card, directory):
    """No Python per tile: as many calls for 1,000 tiles as for 100."""
    import cProfile
    import pstats

    plan = kernels.load(card, kernels.add(directory / "one", (1, 64)))
    calls = []
    for rows in (128, 1024):
        tensors = [card.to_device(normal(rows, 64)) for _ in range(2)] + [card.empty((rows, 64))]
        card.default_stream.launch(plan, tensors)
        card.synchronize()
        profile = cProfile.Profile()
        profile.enable()
        context = plan.bind(card, tensors)
        for step in plan.steps:
            step.stage.run(context, 0, context.iterations)
        profile.disable()
        card.synchronize()
        calls.append(pstats.Stats(profile).total_calls)
        expected = card.to_host(tensors[0]).to_values() + card.to_host(tensors[1]).to_values()
        np.testing.assert_allclose(card.to_host(tensors[2]).to_values(), expected, rtol=2**-8)
    assert calls[1] < 1.5 * calls[0] + 200


def test_launches_from_many_threads(card, tile):
    tensors, plan = matmul_tensors(card), kernels.load(card, tile)
    outputs = [card.empty((ROWS, N), name=f"C{k}") for k in range(4)]
    streams = [card.streams.take() for _ in outputs]
    card.synchronize()

    def launch(k):
        for _ in range(3):
            streams[k].launch(plan, [*tensors[:2], outputs[k]])

    threads = [threading.Thread(target=launch, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    card.synchronize()
    contents = [card.device.bytes_of(t.resolved).tobytes() for t in outputs]
    assert len(set(contents)) == 1
    assert any(contents[0])
