"""Batches of launches: one driver call, faults in the middle, sanitizer, several threads."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.device.device import Device
from spyre.hw.linking import linked_program
from spyre.hw.linking.linked_program import BatchGroup
from spyre.hw.linking.linker import Linker
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.runtime.kernel.kernel import MAX_LINKED, Kernel, Launch
from tests.hw.device.test_overhead import count_calls
from tests.mlir.sample_bundles import SAMPLES
from tests.runtime.bundles import abs_of_sum, scratch
from tests.runtime.launches import (
    TABLES,
    Rig,
    anew,
    assert_same,
    fill,
    link_batch,
    programs_of,
    ranges,
)

MOST_CALLS = 90
"""Python and C calls of linking at a new address."""


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(threads=1)


def made(device: Device, name: str, directory: Path) -> tuple[Kernel, Rig]:
    if name == "scratch":
        scratch(directory)
    elif name == "pool":
        abs_of_sum(directory)
    else:
        write_bundle(SAMPLES[name](), directory)
    kernel = Kernel(load_bundle(directory), device)
    values = {"s0": 48} if name == "runtime_rows" else None
    return kernel, Rig.of(kernel.bundle, values, TABLES.get(name))


def contents(device: Device, launches: list[Launch]) -> list[bytes]:
    return [device.memory.read(*r).tobytes() for launch in launches for r in ranges(launch)]


def filled(device: Device, launches: list[Launch]) -> None:
    for k, launch in enumerate(launches):
        fill(device, launch, k)


NAMES = ["symbolic_add", "add", "tiled", "tiled_baked", "gather", "runtime_rows", "pool", "scratch"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("most_rows", [linked_program.MAX_ROWS, 3])
def test_a_batch_is_its_launches_one_by_one(
    device: Device, tmp_path: Path, name: str, most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linked_program, "MAX_ROWS", most_rows)
    kernel, rig = made(device, name, tmp_path)
    rng = np.random.default_rng(0)
    launches = [rig.anywhere(rng) for _ in range(7)]
    filled(device, launches)
    for launch in launches:
        device.executor.run(anew(kernel, launch))
    expected = contents(device, launches)
    filled(device, launches)
    device.executor.run_batch(link_batch(kernel, launches))
    assert contents(device, launches) == expected


def test_launches_of_several_kinds_keep_their_order(device: Device, tmp_path: Path) -> None:
    """Apart, in place, not on sticks and of another size, in the order given."""
    kernel, rig = made(device, "symbolic_add", tmp_path)
    rng = np.random.default_rng(1)
    apart = [rig.anywhere(rng) for _ in range(4)]
    a, b, c = (tensor.address_bytes for tensor in apart[0].arguments.values())
    unaligned, chained = rig.at([a + 64 + REGION_BYTES, b, c]), rig.at([c, b, c])
    launches = [apart[0], apart[1], chained, chained, unaligned, apart[2], apart[3]]
    batch = link_batch(kernel, launches)
    assert [len(group) for group in batch] == [2, 2, 1, 2]
    for launch, linked in zip(launches, programs_of(batch), strict=True):
        assert_same(linked, anew(kernel, launch))
    filled(device, launches)
    for launch in launches:
        kernel.launch(launch)
    expected = contents(device, launches)
    filled(device, launches)
    device.executor.run_batch(batch)
    assert contents(device, launches) == expected


def test_an_empty_batch(device: Device, tmp_path: Path) -> None:
    kernel, rig = made(device, "scratch", tmp_path)
    shape = kernel.signature_of(rig.anywhere(np.random.default_rng(0)))
    assert len(kernel.link_batch_at(shape, np.zeros((0, rig.count), np.int64))) == 0
    batch = link_batch(kernel, [])
    assert len(batch) == 0
    device.executor.run_batch(batch)


def test_a_launch_that_cannot_be_linked_is_refused(device: Device, tmp_path: Path) -> None:
    kernel, rig = made(device, "symbolic_add", tmp_path)
    rng = np.random.default_rng(2)
    good = rig.anywhere(rng)
    short = replace(good, arguments={k: t for k, t in good.arguments.items() if k != 1})
    with pytest.raises(LaunchError, match="SPY363]: the kernel needs argument 1"):
        link_batch(kernel, [good, short])


# --- faults -----------------------------------------------------------------------------------


def gathers(device: Device, directory: Path, bad: int) -> tuple[Kernel, list[Launch]]:
    """Five launches, number ``bad`` of which has an index out of range."""
    kernel, rig = made(device, "gather", directory)
    rng = np.random.default_rng(3)
    launches = [rig.anywhere(rng) for _ in range(5)]
    filled(device, launches)
    index = launches[bad].arguments[0]
    words = np.zeros(32, np.int32)
    words[5] = 64
    device.memory.write(index.address_bytes, words.view(np.uint8))
    return kernel, launches


@pytest.mark.parametrize("sanitize", [None, True])
@pytest.mark.parametrize("bad", [0, 2, 4])
def test_a_fault_stops_the_rest(tmp_path: Path, sanitize: bool | None, bad: int) -> None:
    device = Device(threads=1, sanitize=sanitize)
    kernel, launches = gathers(device, tmp_path, bad)
    outputs = [launch.arguments[2] for launch in launches]
    for tensor in outputs:
        device.memory.clear(tensor.address_bytes, tensor.size_bytes)
    with pytest.raises(DeviceFault, match="SPY412") as caught:
        device.executor.run_batch(link_batch(kernel, launches))
    ran = [device.bytes_of(tensor).any() for tensor in outputs]
    assert ran[:bad] == [True] * bad
    assert ran[bad + 1 :] == [False] * (4 - bad)
    with pytest.raises(DeviceFault) as alone:
        device.executor.run(anew(kernel, launches[bad]))
    assert str(caught.value) == str(alone.value)


def test_bounds_are_checked_at_any_address(device: Device, tmp_path: Path) -> None:
    """A pool one stick short is a fault at the first launch and at every later one."""
    kernel, rig = made(device, "pool", tmp_path)
    rng = np.random.default_rng(4)
    kernel.link(rig.anywhere(rng))
    short = replace(rig, pool_bytes=rig.pool_bytes - 128)
    for _ in range(3):
        with pytest.raises(DeviceFault, match="SPY411"):
            kernel.link(short.anywhere(rng))
    with pytest.raises(DeviceFault, match="SPY411"):
        link_batch(kernel, [rig.anywhere(rng), short.anywhere(rng)])
    kernel.link(rig.anywhere(rng))


def test_a_sanitized_batch_finds_what_launches_find(tmp_path: Path) -> None:
    """Inputs nobody wrote, in two of three launches."""
    found = []
    for batched in (False, True):
        device = Device(threads=1, sanitize=True)
        kernel, rig = made(device, "symbolic_add", tmp_path)
        launches = [rig.anywhere(np.random.default_rng(k)) for k in range(3)]
        fill(device, launches[1], 0)
        if batched:
            device.executor.run_batch(link_batch(kernel, launches))
        else:
            for launch in launches:
                device.executor.run(anew(kernel, launch))
        assert device.sanitizer is not None
        found.append([str(finding.to_finding()) for finding in device.sanitizer.take()])
    assert found[0]
    assert found[0] == found[1]


# --- caches, threads --------------------------------------------------------------------------


def test_a_kernel_links_once_per_shape(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = []
    original = Linker.link
    monkeypatch.setattr(Linker, "link", lambda *a: linked.append(1) or original(*a))
    kernel, rig = made(device, "scratch", tmp_path)
    rng = np.random.default_rng(5)
    launches = [rig.anywhere(rng) for _ in range(MAX_LINKED + 64)]
    programs = [kernel.link(launch) for launch in launches]
    assert len(linked) == 1
    assert kernel.link(launches[-1]) is programs[-1]
    assert kernel.link(launches[0]) is not programs[1]
    assert MAX_LINKED / 2 <= len(kernel._linked) <= MAX_LINKED
    link_batch(kernel, launches)
    shape = kernel.signature_of(launches[0])
    assert kernel.signature_of(launches[7]) is shape
    assert_same(kernel.link_at(shape, launches[9].addresses), programs[9])
    assert len(linked) == 1


def test_scratch_that_was_given_back_is_elsewhere(device: Device, tmp_path: Path) -> None:
    kernel, rig = made(device, "scratch", tmp_path)
    launch = rig.anywhere(np.random.default_rng(6))
    (before,) = kernel.link(launch).binding.scratch_addresses
    kernel.release_scratch()
    taken = [device.allocate(128, region) for region in range(7)]
    (after,) = kernel.link(launch).binding.scratch_addresses
    assert after == kernel.reserve_scratch()[0].address_bytes != before
    assert_same(kernel.link(launch), anew(kernel, launch))
    kernel.release_scratch()
    for address in taken:
        device.free(address)


def test_threads_link_while_another_runs(device: Device, tmp_path: Path) -> None:
    kernel, rig = made(device, "tiled", tmp_path)
    first = rig.anywhere(np.random.default_rng(7))
    fill(device, first, 0)
    kernel.launch(first)
    expected = contents(device, [first])
    found: dict[int, list[tuple[Launch, object]]] = {}

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        launches = [rig.anywhere(rng) for _ in range(100)]
        found[seed] = [(launch, kernel.link(launch)) for launch in launches]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    runs = 0
    while runs < 20 or any(thread.is_alive() for thread in threads):
        fill(device, first, 0)
        kernel.launch(first)
        runs += 1
    for thread in threads:
        thread.join()
    assert contents(device, [first]) == expected
    for pairs in found.values():
        assert len(pairs) == 100
        for launch, linked in pairs[::25]:
            assert_same(linked, anew(kernel, launch))


def test_no_python_per_launch(device: Device, tmp_path: Path) -> None:
    """Binding and running a batch of addresses calls as often for 1,000 launches as for 10."""
    kernel, rig = made(device, "symbolic_add", tmp_path)
    rng = np.random.default_rng(8)
    shape = kernel.signature_of(rig.anywhere(rng))
    counts = []
    for count in (10, 1000):
        row = np.array(rig.anywhere(rng).addresses, np.int64)
        addresses = row + 128 * rng.integers(0, 1000, count)[:, None]

        def run(addresses: np.ndarray = addresses) -> list[BatchGroup]:
            batch = kernel.link_batch_at(shape, addresses)
            device.executor.run_batch(batch)
            return batch

        run()
        counts.append(min(count_calls(run) for _ in range(3)))
    assert counts[0] == counts[1]


def test_moving_costs_the_same_calls_for_every_program(device: Device, tmp_path: Path) -> None:
    """Not per core, execute or iteration: only arguments and pools count."""
    counts = []
    for name in ("symbolic_add", "tiled", "runtime_rows"):
        kernel, rig = made(device, name, tmp_path / name)
        rng = np.random.default_rng(9)
        kernel.link(rig.anywhere(rng))
        kernel.link(rig.anywhere(rng))
        launches = iter([rig.anywhere(rng) for _ in range(3)])
        counts.append(min(count_calls(lambda: kernel.link(next(launches))) for _ in range(3)))  # noqa: B023
    assert max(counts) - min(counts) <= 10
    assert max(counts) <= MOST_CALLS
