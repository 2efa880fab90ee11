"""Futures of collectives: callbacks see the result, may call collectives, and block no others."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.nn.parallel import DistributedDataParallel

from tests.torch_backend.distributed.ranks import run_ranks
from tests.torch_backend.distributed.test_training import data, fresh, parameters, train

SIZES = [16, 300, 5000, 1 << 16]


@pytest.mark.parametrize("wraps", [lambda x: x / 2, lambda x: (x * 3).sum(), lambda x: x.add_(1)])
def test_the_value_of_a_callback_is_computed_when_it_is_waited_for(wraps):
    def body(rank):
        values = []
        for size in SIZES * 3:
            x = torch.full((size,), rank + 1.0, device="spyre")
            future = dist.all_reduce(x, async_op=True).get_future()
            values.append(future.then(lambda done: wraps(done.value()[0])).wait().cpu())
        return values

    for values in run_ranks(2, body):
        for size, value in zip(SIZES * 3, values, strict=True):
            assert torch.equal(value, wraps(torch.full((size,), 3.0)))


def test_a_callback_follows_the_callers_stream_and_is_followed_by_any_stream():
    def body(rank):
        stream = torch.spyre.Stream()
        x, y = torch.ones(1 << 16, device="spyre"), torch.zeros(1 << 16, device="spyre")
        work = dist.all_reduce(x, async_op=True)
        for _ in range(20):
            y += 1
        future = work.get_future().then(lambda done: done.value()[0] + y)
        with stream:
            return (future.wait() + 1).cpu()

    for value in run_ranks(2, body):
        assert (value == 23).all()


def test_callbacks_call_collectives_in_the_same_order_on_all_ranks():
    """Rank 1 is late, so that its callbacks are added after the operations have ended."""

    def body(rank):
        group, sums = dist.group.WORLD, []

        def again(done):
            x = done.value()[0]
            dist.all_reduce(x, group=group)
            inner = dist.all_reduce(x, group=group, async_op=True).get_future()
            return inner.then(lambda last: last.value()[0] * 1).wait()

        for number in range(4):
            x = torch.full((70 + number,), 1.0 + number, device="spyre")
            work = dist.all_reduce(x, async_op=True)
            if rank == 1:
                work.wait()
            sums.append(work.get_future().then(again).then(lambda done: done.value() + 1))
            dist.all_reduce(torch.ones(3, device="spyre"))
        return [future.wait().cpu() for future in sums]

    for values in run_ranks(2, body):
        for number, value in enumerate(values):
            assert torch.equal(value, torch.full((70 + number,), 8 * (1.0 + number) + 1))


def test_a_callback_blocks_no_collective():
    def body(rank):
        x, go_on = torch.ones(70, device="spyre"), threading.Event()
        future = dist.all_reduce(x, async_op=True).get_future().then(lambda _: go_on.wait(30))
        y = torch.ones(70, device="spyre")
        dist.all_reduce(y, async_op=True).wait()
        dist.all_reduce(y)
        go_on.set()
        return future.wait(), y[0].item()

    assert run_ranks(2, body) == [(True, 4.0)] * 2


def test_errors_of_callbacks_and_of_operations():
    def body(rank):
        x = torch.ones(70 + rank, device="spyre")

        def fail(done):
            raise ValueError("the callback")

        fine = dist.all_reduce(torch.ones(3, device="spyre"), async_op=True).get_future()
        failed = fine.then(fail)
        with pytest.raises(RuntimeError, match="the callback"):
            failed.wait()
        with pytest.raises(RuntimeError, match="the callback"):
            failed.then(lambda done: done.value()).wait()
        future = dist.all_reduce(x, async_op=True).get_future()
        with pytest.raises(RuntimeError, match=r"SPY95[27]"):
            future.then(lambda done: done.value()).wait()

    run_ranks(2, body)


def test_values_of_futures():
    def body(rank):
        x, outs = torch.ones(3, device="spyre"), [torch.empty(3, device="spyre") for _ in "ab"]
        called = threading.Event()
        future = dist.all_gather(outs, x, async_op=True).get_future()
        future.add_done_callback(lambda done: called.set())
        (gathered,) = future.wait()
        assert called.wait(30)
        both = [dist.all_reduce(x, async_op=True).get_future() for _ in range(2)]
        collected = torch.futures.collect_all(both).then(lambda done: 1).wait()
        return [out.cpu().tolist() for out in gathered], collected

    assert run_ranks(2, body) == [([[1.0] * 3] * 2, 1)] * 2


# --- hooks of DDP -----------------------------------------------------------------------------


def trained(hook, make_state, steps=4):
    """Parameters of both ranks after training with a hook."""
    model, (x, y) = fresh(), data()

    def body(rank):
        own = type(model)()
        own.load_state_dict(model.state_dict())
        # several buckets
        wrapped = DistributedDataParallel(own.to("spyre"), bucket_cap_mb=0.005)
        if hook is not None:
            wrapped.register_comm_hook(make_state(), hook)
        part = slice(4 * rank, 4 * rank + 4)
        train(wrapped, x[part].to("spyre"), y[part].to("spyre"), steps)
        return parameters(own)

    return run_ranks(2, body, timeout=60.0)


@pytest.fixture(scope="module")
def plainly(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPYRECCL_TRANSPORT", "shm")
        return trained(None, lambda: None)[0]


def power_state():
    return powerSGD_hook.PowerSGDState(
        dist.group.WORLD, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=1
    )


def local_state():
    return post_localSGD_hook.PostLocalSGDState(dist.group.WORLD, None, start_localSGD_iter=10)


def bf16_hook(state, bucket):
    """torch checks the name of its hook, and wants CUDA or XPU for it."""
    return default_hooks.bf16_compress_hook(state, bucket)


HOOKS = {
    "allreduce": (default_hooks.allreduce_hook, lambda: None, 0.0),
    "fp16": (default_hooks.fp16_compress_hook, lambda: None, 2e-3),
    "bf16": (bf16_hook, lambda: None, 2e-2),
    "powerSGD": (powerSGD_hook.powerSGD_hook, power_state, 5e-2),
    "wrapped": (
        default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
        power_state,
        5e-2,
    ),
    "post_localSGD": (post_localSGD_hook.post_localSGD_hook, local_state, 0.0),
    "quantized": (quantization_hooks.quantization_pertensor_hook, lambda: dist.group.WORLD, 2e-2),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_of_torch(name, plainly):
    hook, make_state, tolerance = HOOKS[name]
    first, second = trained(hook, make_state)
    for one, other, expected in zip(first, second, plainly, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        torch.testing.assert_close(one, expected, rtol=tolerance, atol=max(tolerance, 1e-7))


def test_a_hook_in_cpp(plainly):
    model, (x, y) = fresh(), data()

    def body(rank):
        own = type(model)()
        own.load_state_dict(model.state_dict())
        wrapped = DistributedDataParallel(own.to("spyre"), bucket_cap_mb=0.005)
        wrapped._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        part = slice(4 * rank, 4 * rank + 4)
        train(wrapped, x[part].to("spyre"), y[part].to("spyre"), 4)
        return parameters(own)

    for own in run_ranks(2, body):
        for one, expected in zip(own, plainly, strict=True):
            torch.testing.assert_close(one, expected, rtol=2e-3, atol=2e-3)


def test_optimizers_in_hooks(plainly):
    model, (x, y) = fresh(), data()

    def body(rank):
        own = type(model)()
        own.load_state_dict(model.state_dict())
        own.to("spyre")
        wrapped = DistributedDataParallel(own, bucket_cap_mb=0.005)
        wrapped._register_fused_optim(torch.optim.SGD, 0.05)
        part = slice(4 * rank, 4 * rank + 4)
        for _ in range(4):
            loss = nn.functional.mse_loss(wrapped(x[part].to("spyre")), y[part].to("spyre"))
            wrapped.zero_grad()
            loss.backward()
        return parameters(own)

    for own in run_ranks(2, body):
        for one, expected in zip(own, plainly, strict=True):
            torch.testing.assert_close(one, expected, rtol=1e-6, atol=1e-6)


PROCESS_THAT_ENDS_DURING_A_JOB = """
import time, torch
from spyre.torch_backend.distributed.threads import OrderedThreads

def job():
    end, x = time.monotonic() + 0.5, torch.randn(600, 600)
    while time.monotonic() < end:
        x @ x

OrderedThreads().put("group", "", job)
time.sleep(0.1)
"""


def test_a_process_ends_during_a_job():
    command = [sys.executable, "-c", PROCESS_THAT_ENDS_DURING_A_JOB]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
