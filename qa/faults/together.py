"""Several users of the cards of one process at once: threads, and a child made by fork."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import spyre
from qa.faults.files import Workshop
from qa.faults.outcome import Fault, ended
from spyre.errors import DeviceOutOfMemory, SpyreError

THREADS = 8
_CHILD_SECONDS = 60


def thread_faults(shop: Workshop) -> Iterator[Fault]:
    """Yield runs of eight threads, one of which always fails."""
    for own_card in (False, True):
        name = f"eight threads, {'a card each' if own_card else 'one card'}"
        yield Fault(name, partial(_threads, shop, own_card), 120)


def _threads(shop: Workshop, own_card: bool, rng: random.Random) -> str:
    bundle = Path(shop.at("bundle"))
    wanted = np.load(shop.root / "y.npy")
    card = spyre.Device()
    wrong = np.zeros((3, 3), np.float16)

    def run(number: int) -> str:
        session = spyre.Session(spyre.Device() if own_card else card)
        for _ in range(4):
            if number == 0:
                with pytest.raises(SpyreError, match="SPY333"):
                    session.run(bundle, [wrong])
                continue
            found = session.run(bundle)
            if not np.array_equal(found.output_tensors[0].to_array(), wanted):
                return f"thread {number} has other numbers"
        return ""

    with ThreadPoolExecutor(THREADS) as pool:
        return next(filter(None, pool.map(run, range(THREADS))), "")


def fork_faults(shop: Workshop) -> Iterator[Fault]:
    """Yield forks: a child runs the same program as its parent, on a new card."""
    for is_used in (False, True):
        name = f"a fork {'after' if is_used else 'before'} the parent's card is used"
        yield Fault(name, partial(_fork, shop, is_used), 2 * _CHILD_SECONDS)


def _fork(shop: Workshop, is_used: bool, rng: random.Random) -> str:
    bundle = Path(shop.at("bundle"))
    session = spyre.Session(spyre.Device())
    if is_used:
        session.run(bundle)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            spyre.Session(spyre.Device()).run(bundle)
            code = 0
        finally:
            os._exit(code)
    code = _waited_for(child)
    session.run(bundle)
    return "" if code == 0 else f"the child ended with {code}"


def _waited_for(child: int) -> int:
    end = time.monotonic() + _CHILD_SECONDS
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def device_memory_faults(shop: Workshop) -> Iterator[Fault]:
    """Yield demands for more device memory than the card has: by a pool, by allocations."""
    for share in (1.0, 8.0, 1e6):
        yield Fault(f"a pool of {share:g} cards", partial(_large_pool, shop, share))
    yield Fault("allocations until nothing is left", partial(_fill_card, shop))


def _large_pool(shop: Workshop, share: float, rng: random.Random) -> str:
    file = shop.root / "case" / "case.json"
    good = file.read_bytes()
    case = json.loads(good)
    case["buffers"]["pool2"] = {"kind": "pool", "nbytes": int(share * (128 << 30))}
    try:
        file.write_text(json.dumps(case))
        done = ended(("spyre-run", shop.at("case"), "-q"))
    finally:
        file.write_bytes(good)
    if done.untruth or done.code != 2:
        return done.untruth or f"exit code {done.code}"
    again = ended(("spyre-run", shop.at("case"), "-q"))
    return "" if again.code == 0 else f"not right afterwards: {again}"


def _fill_card(shop: Workshop, rng: random.Random) -> str:
    device = spyre.Device()
    held = []
    with suppress(DeviceOutOfMemory):
        while True:
            held.append(device.allocate(rng.randrange(1 << 30, 8 << 30)))
    with suppress(DeviceOutOfMemory):
        spyre.Session(device).run(shop.at("bundle"))
    for address in held:
        device.free(address)
    spyre.Session(device).run(shop.at("bundle"))
    return ""
