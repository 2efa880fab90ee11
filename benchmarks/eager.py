"""Overhead of PyTorch over a kernel: `python -m benchmarks.eager [--json]`.

Small: a warm operation on 64x64 float16 tensors; *enqueue* is the time until it returns,
*completion* until `synchronize` has returned too. Large: an operation with `synchronize` against
the program it launches, at the same addresses: launched on the stream with `synchronize`, as the
runtime does (*engine*), and linked beforehand and called in the measuring thread (*driver alone*);
the three take turns, and the median ratios count. Others: median of single calls with
`synchronize`. All in one process, after warming up; targets in brackets.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from unittest import mock

import torch

from benchmarks.results import Figure, run
from spyre.torch_backend import autoload
from spyre.torch_backend.program import CompiledProgram

SMALL_ROUNDS = 500
WARM_ROUNDS = 300
ADD_PAIRS = 101
MATMUL_PAIRS = 7
Operation = Callable[[], object]


def once_ns(operation: Operation) -> tuple[int, int]:
    """Return the nanoseconds of one call until it has returned and until the card is idle."""
    begin = time.perf_counter_ns()
    result = operation()
    queued = time.perf_counter_ns()
    torch.spyre.synchronize()
    done = time.perf_counter_ns()
    del result
    return queued - begin, done - begin


def medians_us(operation: Operation, rounds: int = SMALL_ROUNDS) -> tuple[float, float]:
    """Return median microseconds of enqueue and completion of a warm operation."""
    for _ in range(WARM_ROUNDS):
        once_ns(operation)
    times = [once_ns(operation) for _ in range(rounds)]
    enqueue, complete = (statistics.median(column) / 1e3 for column in zip(*times, strict=True))
    return enqueue, complete


def small() -> list[Figure]:
    """Measure operations on 64x64 tensors."""
    a, b = (torch.rand(64, 64).half().to("spyre") for _ in range(2))
    operations: dict[str, Operation] = {
        "add": lambda: a + b,
        "mm": lambda: a @ b,
        "softmax": lambda: torch.softmax(a, -1),
        "mul by a number": lambda: a * 2.5,
    }
    figures = []
    for name, operation in operations.items():
        enqueue, complete = medians_us(operation)
        figures.append(Figure(f"{name}, 64x64: enqueue", enqueue, "us", 150))
        figures.append(Figure(f"{name}, 64x64: completion", complete, "us", 150))
    enqueue, _ = medians_us(lambda: torch.empty(64, 64, dtype=torch.float16, device="spyre"))
    return [*figures, Figure("torch.empty, 64x64", enqueue, "us", 45)]


def large() -> list[Figure]:
    """Measure operations on large tensors against the engine's time for their programs."""
    a, b = (torch.rand(2048, 4096).half().to("spyre") for _ in range(2))
    m, n = (torch.rand(2048, 2048).half().to("spyre") for _ in range(2))
    return [
        *against_engine("add, 2048x4096", torch.add, a, b, ADD_PAIRS),
        *against_engine("mm, 2048x2048x2048", torch.mm, m, n, MATMUL_PAIRS),
    ]


def against_engine(
    name: str,
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    a: torch.Tensor,
    b: torch.Tensor,
    rounds: int,
) -> list[Figure]:
    """Measure an operation against its program, which writes to the address of its result."""

    def operation() -> torch.Tensor:
        return function(a, b)

    operation()
    launch, drive = directly(operation)
    sides = (lambda: once_ns(operation)[1], lambda: once_ns(launch)[1], lambda: _timed(drive))
    for side in 2 * sides:
        side()
    times = [_in_turn(sides, number) for number in range(rounds)]
    eager, engine, driver = zip(*times, strict=True)
    return [
        Figure(f"{name}: completion", statistics.median(eager) / 1e6, "ms"),
        Figure(f"{name}: against the engine", _median_ratio(eager, engine), "x", 1.1),
        Figure(f"{name}: against the driver alone", _median_ratio(eager, driver), "x"),
    ]


def _in_turn(sides: Sequence[Callable[[], int]], number: int) -> list[int]:
    """Call all sides, starting with another one for each ``number``; return their results."""
    found = {}
    for place in range(len(sides)):
        side = (place + number) % len(sides)
        found[side] = sides[side]()
    return [found[side] for side in range(len(sides))]


def _median_ratio(times: Sequence[int], others: Sequence[int]) -> float:
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def directly(operation: Operation) -> tuple[Operation, Operation]:
    """Return two calls of the program that ``operation`` launches: on the stream, in the driver.

    They use the same addresses; the result's are free again, and the next call allocates them.
    """
    launch = CompiledProgram.launch
    with mock.patch.object(CompiledProgram, "launch", autospec=True, side_effect=launch) as called:
        operation()
    torch.spyre.synchronize()
    ((program, _, addresses, *_),) = (call.args for call in called.call_args_list)
    linked, card = program.linked_at(addresses), program.card
    return (
        lambda: program.launch(card.streams.current, addresses, ()),
        lambda: card.device.executor.run(linked),
    )


def _timed(operation: Operation) -> int:
    begin = time.perf_counter_ns()
    operation()
    return time.perf_counter_ns() - begin


def others() -> list[Figure]:
    """Measure a fallback to the CPU, and copies."""
    a, b = (torch.rand(64, 64).half().to("spyre") for _ in range(2))
    x, y = (t.float() for t in (a, b))
    _, fallback = medians_us(lambda: torch.heaviside(x, y), 100)
    host = torch.rand(2048, 4096).half()
    card = host.to("spyre")
    _, up = medians_us(lambda: host.to("spyre"), 20)
    _, down = medians_us(lambda: card.cpu(), 20)
    return [
        Figure("fallback to the CPU, 64x64 float32", fallback, "us"),
        Figure("host to card, 2048x4096", up / 1e3, "ms"),
        Figure("card to host, 2048x4096", down / 1e3, "ms"),
    ]


def measure() -> list[Figure]:
    """Measure all figures."""
    os.environ["SPYRE_FALLBACK"] = "silent"
    autoload()
    return [*small(), *large(), *others()]


if __name__ == "__main__":
    raise SystemExit(run(__doc__, measure))
