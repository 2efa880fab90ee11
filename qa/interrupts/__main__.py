"""Interrupt work on a card thousands of times, and check the card after each interrupt.

Half of the interrupts come at a random line of Python of this package or torch, half after a random
time, so also within C++. Each kind of work has a separate process. Exit codes: 0 if no process
aborted or hung and every card was right afterwards, else 1. ``--device cpu`` shows which failures
are torch's: an interrupt as a checkpoint begins leaves its hooks behind, on every device.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.utils.checkpoint

from tests.interrupts import interrupted_at, interruptible

Work = Callable[[], list[torch.Tensor]]
"""Returns CPU tensors, the same at every call."""
HANG_SECONDS = 600
AFTER_SECONDS = 0.0005
"""Seconds within which a sent interrupt arrives."""


def _network(device: str) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    network = torch.nn.Sequential(*layers, torch.nn.Linear(16, 4)).to(device)
    x = torch.randn(6, 8, device="cpu").to(device)
    return network, x, torch.tensor([0, 1, 2, 3, 0, 1], dtype=torch.int32).long().to(device)


def _multiply_gradient(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(1)


def _backward(device: str, *, hooks: bool = False, checkpoint: bool = False) -> Work:
    network, x, targets = _network(device)
    if hooks:
        for parameter in network.parameters():
            parameter.register_hook(lambda grad: grad * 1)
            parameter.register_post_accumulate_grad_hook(_multiply_gradient)
        network.register_full_backward_hook(lambda *_: None)

    def work() -> list[torch.Tensor]:
        network.zero_grad()
        if checkpoint:
            y = torch.utils.checkpoint.checkpoint(network, x, use_reentrant=False)
        else:
            y = network(x)
        torch.nn.functional.cross_entropy(y, targets).backward()
        return [parameter.grad.cpu() for parameter in network.parameters()]

    return work


def _forward(device: str) -> Work:
    network, x, _ = _network(device)
    return lambda: [network(x).detach().cpu()]


def _operations(device: str) -> Work:
    host = torch.arange(12.0, device="cpu").reshape(3, 4)

    def work() -> list[torch.Tensor]:
        x = host.to(device, copy=True)
        x[1:].mul_(3)
        rows = (x + 2)[:2].sum(1)
        del x
        return [torch.hypot(rows, rows).cpu()]

    return work


def _streams(device: str) -> Work:
    x, streams = torch.ones(64, 64, device=device), torch.get_device_module(device)

    def work() -> list[torch.Tensor]:
        stream = streams.Stream()
        stream.wait_stream(streams.current_stream())
        with stream:
            y = x + 1
        streams.current_stream().wait_stream(stream)
        return [(y * 2).cpu()]

    return work


KINDS: dict[str, Callable[[str], Work]] = {
    "backward": _backward,
    "hooks": partial(_backward, hooks=True),
    "checkpoint": partial(_backward, checkpoint=True),
    "forward": _forward,
    "operations": _operations,
    "streams": _streams,
}
"""Functions that prepare the work, by name; the first three run backward passes."""


def _at_line(work: Work, draw: random.Random, lines: int) -> bool:
    """Interrupt ``work`` at a random line; returns whether it raised."""
    package = draw.choice(("spyre.", "torch."))
    with interrupted_at(draw.randint(1, max(lines, 100)), package):
        try:
            work()
        except KeyboardInterrupt:
            return True
    return False


def _at_time(work: Work, draw: random.Random, seconds: float) -> bool:
    """Interrupt ``work`` after a random time; returns whether it raised, not the wait behind it."""
    until, sent = time.perf_counter() + draw.random() * seconds, threading.Event()

    def send() -> None:
        while time.perf_counter() < until:
            time.sleep(0)
        sent.set()
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    is_over = False
    try:
        sender.start()
        work()
        is_over = True
        sender.join()
        time.sleep(AFTER_SECONDS)
    except KeyboardInterrupt:
        while sender.is_alive():
            sender.join()
        return not is_over
    return False


def _remove_hooks_of_checkpoints() -> int:
    """Remove the hooks that interrupted checkpoints of torch left; returns their number."""
    hooks, count = torch._C._autograd, 0
    while hooks._top_saved_tensors_default_hooks(True) is not None:
        hooks._pop_saved_tensors_default_hooks()
        count += 1
    return count


def interrupt_often(kind: str, device: str, seed: int, count: int) -> None:
    """Interrupt one kind of work ``count`` times, and print how many interrupts it raised."""
    draw, work = random.Random(f"{kind} {seed}"), KINDS[kind](device)
    expected = [work() for _ in range(3)][-1]
    with interrupted_at(0, "torch.") as whole:
        work()
    start = time.perf_counter()
    work()
    seconds, raised, wrong, left = time.perf_counter() - start, 0, 0, 0
    for k in range(count):
        with interruptible():
            if k % 2:
                raised += _at_line(work, draw, whole.lines)
            else:
                raised += _at_time(work, draw, seconds)
        if kind == "checkpoint":
            left += _remove_hooks_of_checkpoints()
        found = work()
        is_right = all(map(torch.equal, found, expected))
        if not (is_right and torch.autograd.is_multithreading_enabled()):
            wrong += 1
            print(f"{kind}: wrong after interrupt {k}")
    print(f"{kind}: {count} interrupts, {raised} raised within the work, {wrong} wrong afterwards")
    if left:
        print(f"{kind}: {left} left hooks of torch.utils.checkpoint behind, as on the CPU")
    sys.exit(1 if wrong else 0)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.child:
        interrupt_often(options.child, options.device, options.seed, options.interrupts)
    kinds = options.kinds or [*KINDS]
    failed = 0
    for kind in kinds:
        count = str(-(-options.interrupts // len(kinds)))
        own = ["--interrupts", count, "--seed", str(options.seed), "--device", options.device]
        environment = {**os.environ, "SPYRE_FALLBACK": "silent", "TORCH_SPYRE_DOWNCAST_WARN": "0"}
        command = [sys.executable, "-m", "qa.interrupts", "--child", kind, *own]
        try:
            code = subprocess.run(
                command, env=environment, timeout=HANG_SECONDS, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            failed += 1
            what = "hung" if code is None else f"ended with exit code {code}"
            print(f"{kind} {what}: python -m qa.interrupts --kinds {kind} --seed {options.seed}")
    print(f"{failed} of {len(kinds)} kinds of work failed")
    return 1 if failed else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m qa.interrupts", description=__doc__)
    parser.add_argument("--interrupts", type=int, default=3000, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], help="default: all")
    parser.add_argument("--device", default="spyre", help="cpu: which failures are torch's")
    parser.add_argument("--child", choices=[*KINDS], help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
