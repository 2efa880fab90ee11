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
from tests.torch_backend.processes import run

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
    """Operations that were compiled before, and operations that are compiled meanwhile."""
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


HOOKS = """
from torch.utils.checkpoint import checkpoint

class Failure(Exception):
    pass

def fail(*_):
    raise KIND("in a hook")

def recomputed(x):
    calls.append(1)
    if len(calls) == 2:
        fail()
    return layer(x)

class Failing(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x * 2)
    backward = staticmethod(fail)

def queued(gradient):
    torch.autograd.Variable._execution_engine.queue_callback(fail)

calls = []
layer = torch.nn.Linear(8, 8).to(DEVICE)
x = torch.ones(4, 8).to(DEVICE).requires_grad_()

def unpacked():
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, fail):
        return layer(x).relu()

def hooked(register):
    y = layer(x)
    register(y)
    return y

WAYS = {
    "tensor": lambda: hooked(lambda y: y.register_hook(fail)),
    "parameter": lambda: hooked(lambda y: handles.append(layer.weight.register_hook(fail))),
    "accumulated": lambda: hooked(
        lambda y: handles.append(layer.weight.register_post_accumulate_grad_hook(fail))
    ),
    "after a node": lambda: hooked(lambda y: y.grad_fn.register_hook(fail)),
    "before a node": lambda: hooked(lambda y: y.grad_fn.register_prehook(fail)),
    "several": lambda: hooked(
        lambda y: handles.append(torch.autograd.graph.register_multi_grad_hook([y, x], fail))
    ),
    "module": lambda: (handles.append(layer.register_full_backward_hook(fail)), layer(x))[1],
    "saved": unpacked,
    "checkpoint": lambda: checkpoint(recomputed, x, use_reentrant=False),
    "reentrant": lambda: checkpoint(recomputed, x, use_reentrant=True),
    "function": lambda: Failing.apply(layer(x)),
    "queued": lambda: hooked(lambda y: y.register_hook(queued)),
}
for KIND in (Failure, KeyboardInterrupt, SystemError):
    for name, way in WAYS.items():
        handles = []
        calls.clear()
        y = way()
        try:
            y.sum().backward()
        except BaseException as error:
            print(name, repr(error), error.__traceback__.tb_next is not None, error.__cause__)
        for handle in handles:
            handle.remove()
        layer.zero_grad()
        layer(x).sum().backward()
        print(layer.bias.grad.tolist())
"""


def test_errors_in_backward_passes_are_those_of_the_cpu():
    """In a separate process, because an abort would end it."""
    printed = [run(f"DEVICE = {device!r}\n{HOOKS}") for device in ("cpu", "spyre")]
    assert printed[0].count("in a hook") == 36
    assert printed[0] == printed[1]


def test_the_guard_does_not_call_python():
    """C++ calls it where an exception, such as Ctrl-C, ends the process."""
    printed = run("""
        from torch.utils.backend_registration import _DummyDeviceGuard
        def type_(self):
            raise KeyboardInterrupt
        _DummyDeviceGuard.type_ = type_
        for device in ("cpu", "spyre"):
            layer = torch.nn.Linear(8, 8).to(device)
            x = torch.ones(4, 8).to(device).requires_grad_()
            stream = torch.spyre.Stream()
            with stream:
                y = layer(x).mul_(2)[1:]
            torch.autograd.grad(y.sum(), x, create_graph=True)[0].sum().backward()
            print(layer.weight.grad is None, x.device, torch.empty_like(x).device)
    """)
    assert printed.split("\n")[:2] == ["False cpu cpu", "False spyre:0 spyre:0"]


@pytest.mark.parametrize("kind", ["backward", "hooks", "checkpoint", "forward"])
def test_interrupts_at_any_time(kind):
    """A few cases of qa.interrupts: by line of Python, also torch's, and by time, also in C++."""
    printed = run(f"""
        from qa.interrupts.__main__ import interrupt_often
        interrupt_often({kind!r}, "spyre", 1, 12)
    """)
    assert f"{kind}: 12 interrupts" in printed
