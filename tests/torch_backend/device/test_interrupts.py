"""Ctrl-C at any moment leaves a usable device: nothing is lost, nothing is wrong."""

from __future__ import annotations

import gc
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from spyre.interrupts import FinalizerQueue, interrupts
from spyre.runtime.flex.device import devices
from tests.interrupts import interrupted_at, interruptible

MOMENTS = 30


def work(host: torch.Tensor, number: float, device: str = "spyre") -> torch.Tensor:
    """Copies, operations, views, a CPU fallback, storages that come and go."""
    x = host.to(device, copy=True)
    x[1:].mul_(number)
    rows = (x + number)[:2].sum(1)
    del x
    return torch.hypot(rows, rows).cpu()


def settled() -> tuple[int, int]:
    """Tensors that live on the card, and their bytes, once all work has ended."""
    gc.collect()
    torch.spyre.synchronize()
    stats = torch.spyre.memory_stats()
    return stats["allocation.all.current"], stats["allocated_bytes.all.current"]


@pytest.mark.parametrize("is_new", [False, True], ids=["known", "new"])
def test_interrupts_at_any_line(is_new):
    """Of operations that were compiled before, and of such that are compiled meanwhile."""
    draw = random.Random(1)
    work(torch.ones(3, 4), 3.0)
    with interrupted_at(0) as whole:
        work(torch.ones(3, 5), 3.0) if is_new else work(torch.ones(3, 4), 3.0)
    before, reserved = settled(), torch.spyre.memory_reserved()
    for k in range(MOMENTS):
        host = torch.ones(3, 6 + k) if is_new else torch.ones(3, 4)
        came = False
        with interruptible(), interrupted_at(draw.randint(1, whole.lines)) as moment:
            try:
                work(host, 3.0)
            except KeyboardInterrupt:
                came = True
        assert came == moment.came
        assert signal.getsignal(signal.SIGINT) is not interrupts._receive
        assert settled() == before
        assert is_new or torch.spyre.memory_reserved() == reserved
        assert devices().current.scheduler.is_idle
        assert torch.equal(work(host, 3.0), work(host, 3.0, "cpu"))


def test_blocks_nest_and_interrupts_come_at_their_end():
    came = []
    with interruptible():
        signal.signal(signal.SIGINT, lambda *_: came.append(len(came)))
        with interrupts:
            with interrupts:
                signal.raise_signal(signal.SIGINT)
            assert came == []
            interrupts.poll()
            assert came == [0]
            signal.raise_signal(signal.SIGINT)
            with interrupts.allowed():
                assert came == [0, 1]
                signal.raise_signal(signal.SIGINT)
                assert came == [0, 1, 2]
                with interrupts:
                    signal.raise_signal(signal.SIGINT)
                    assert came == [0, 1, 2]
                assert came == [0, 1, 2, 3]
            signal.raise_signal(signal.SIGINT)
            assert came == [0, 1, 2, 3]
        assert came == [0, 1, 2, 3, 4]


def test_blocks_that_hold_nothing_off_end_nothing():
    with interruptible():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with interrupts:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with interrupts, ThreadPoolExecutor(1) as another:
            assert not another.submit(interrupts.begin).result()
            another.submit(interrupts.end).result()
            assert signal.getsignal(signal.SIGINT) == interrupts._receive


def test_a_child_of_another_thread_holds_interrupts_off():
    """Its one thread is the main one."""

    def child_status() -> int:
        child = os.fork()
        if child == 0:
            os._exit(0 if interrupts.begin() else 1)
        return os.waitpid(child, 0)[1]

    with interruptible(), ThreadPoolExecutor(1) as another:
        assert another.submit(child_status).result() == 0


def test_finalizers_are_told_once():
    class Owner:
        pass

    finalizers: FinalizerQueue[int] = FinalizerQueue()
    first, second, cycle = Owner(), Owner(), Owner()
    cycle.itself = cycle
    keys = [finalizers.register(owner, k) for k, owner in enumerate((first, second, cycle))]
    del first, cycle
    gc.collect()
    assert sorted(finalizers.drain()) == [0, 2]
    assert not list(finalizers.drain())
    assert finalizers.cancel(keys[1]) == 1
    assert finalizers.cancel(keys[0]) is None
    del second
    assert not finalizers.pending
