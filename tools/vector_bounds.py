"""Cycles of functions of DL16 codes on a core, against the bound of its ports: `python -m
tools.vector_bounds`.

Every loop is compiled alone in the form of the elementwise kernel. The vector instructions, loads,
stores and divisions of one iteration of the innermost loop are counted in its machine code. The
bound is the largest number of cycles that one kind needs at the rates of `Ports`; the rate of
arithmetic instructions, one or two a cycle, is measured. The measured time is the median over codes
in the second-level cache, processor time of one thread. A chain of shifts, which take a cycle each,
measures the cycles per nanosecond.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numba
import numpy as np
from rich.console import Console
from rich.table import Table

from spyre.hw.kernels import dl16_vectors
from spyre.hw.kernels.dl16_functions import (
    CODE_OPERATIONS,
    Vector,
    multiply_add,
    of_numbers,
    vector_formula,
)
from spyre.hw.kernels.dl16_vectors import HOST_CODES, IN_STEP
from spyre.hw.kernels.intrinsics import LANES
from spyre.hw.spec import STICK_BYTES

CODES = IN_STEP * HOST_CODES
"""Codes per iteration."""
ELEMENTS = 1 << 15
ROUNDS = 400
CHAIN = 2_000_000
CHAIN_CYCLES = 6
"""Cycles of a step: three shifts, each combined with another instruction."""
Loop = Callable[..., None]


@dataclass(frozen=True)
class Ports:
    """Rates of a core in instructions per cycle; ``division`` and ``root``: cycles of one
    instruction on a whole vector.
    """

    arithmetic: float
    vector: float
    load: float
    store: float
    division: float
    root: float


WIDE = Ports(arithmetic=2, vector=2, load=2, store=1, division=10, root=12)
"""512-bit vectors on Intel since Skylake: ports 0 and 5; port 5 multiplies and adds on some cores
only (Intel's optimization manual; uops.info).
"""
NARROW = Ports(arithmetic=2, vector=3, load=2, store=1, division=5, root=6)
"""256-bit vectors on the same: ports 0, 1 and 5."""


@dataclass(frozen=True)
class Counts:
    """Instructions of one iteration; ``arithmetic``: those of ``vector`` on float32."""

    arithmetic: int
    vector: int
    load: int
    store: int
    division: int
    root: int

    def bound(self, ports: Ports) -> float:
        """Return the least cycles of an iteration."""
        return max(
            self.arithmetic / ports.arithmetic,
            self.vector / ports.vector,
            self.load / ports.load,
            self.store / ports.store,
            self.division * ports.division + self.root * ports.root,
        )


def compiled(operation: Any, operands: int) -> Loop:
    """Compile the loop of an operation over addresses of operands and, last, the result."""
    loop = dl16_vectors.make(partial(dl16_vectors.emit_elementwise, 0, operation))

    def over_one(x: int, z: int, count: int) -> None:
        loop((x, z, STICK_BYTES, STICK_BYTES), count // (STICK_BYTES // 2))

    def over_two(x: int, y: int, z: int, count: int) -> None:
        loop((x, y, z, STICK_BYTES, STICK_BYTES, STICK_BYTES), count // (STICK_BYTES // 2))

    chosen = over_one if operands == 1 else over_two
    signature = numba.void(*[numba.int64] * (operands + 2))
    return numba.njit(signature, nogil=True)(chosen)  # type: ignore[no-any-return]


def counts_of(loop: Any) -> Counts:
    """Count the innermost loop: from the target of the last backward jump to the jump."""
    (text,) = loop.inspect_asm().values()
    lines = [line.strip() for line in text.splitlines()]
    labels = {line[:-1]: k for k, line in enumerate(lines) if line.endswith(":")}
    bodies = []
    for k, line in enumerate(lines):
        jump = re.match(r"j\w+\s+(\S+)", line)
        if jump and labels.get(jump[1], k) < k:
            body = lines[labels[jump[1]] : k]
            if any("zmm" in each or "ymm" in each for each in body):
                bodies.append(body)
    return _counted(min(bodies, key=len))


def _counted(body: list[str]) -> Counts:
    # an operation that broadcasts from memory counts as a load too
    vectors = [line for line in body if re.match(r"[vk]\w+\s", line)]
    stores = [line for line in vectors if line.endswith(")") and line.startswith("vmov")]
    loads = [line for line in vectors if "(" in line and line not in stores]
    plain = [line for line in vectors if not line.startswith("vmov")]
    arithmetic = [line for line in plain if line.split()[0].endswith("ps")]
    divisions, roots = ([line for line in plain if line.startswith(n)] for n in ("vdiv", "vsqrt"))
    return Counts(*map(len, (arithmetic, plain, loads, stores, divisions, roots)))


@numba.njit(numba.uint64(numba.uint64, numba.int64))
def _chain(x: Any, steps: Any) -> Any:
    for _ in range(steps):
        x ^= x << np.uint64(13)
        x ^= x >> np.uint64(7)
        x ^= x << np.uint64(17)
    return x


def cycles_per_ns() -> float:
    """Measure the current clock of this core, in cycles per nanosecond."""
    begin = time.thread_time_ns()
    _chain(np.uint64(1), CHAIN)
    return CHAIN * CHAIN_CYCLES / (time.thread_time_ns() - begin)


def cycles_of(loop: Loop, operands: int) -> float:
    """Measure the cycles per element."""
    rng = np.random.default_rng(0)
    # codes of numbers from 1/8 to 8
    arrays = [rng.integers(0x3800, 0x4400, ELEMENTS).astype(np.uint16) for _ in range(operands + 1)]
    addresses = [array.ctypes.data for array in arrays]
    found = []
    for _ in range(ROUNDS):
        begin = time.thread_time_ns()
        loop(*addresses, ELEMENTS)
        found.append(time.thread_time_ns() - begin)
    return statistics.median(found) / ELEMENTS * statistics.median(cycles_per_ns() for _ in "12345")


LENGTH = 256
FUNCTIONS = (
    *("neg", "add", "mul", "exp", "log", "sqrt", "rsqrt", "reciprocal"),
    *("tanh", "sigmoid", "gelu", "silu"),
)


def _much_arithmetic(x: Vector) -> Vector:
    """A chain for each of the vectors in step: eight of them hide the latency of an instruction."""
    half, one, in_step = np.float32(0.5), np.float32(1.0), vector_formula("in_step")
    for _ in range(LENGTH):
        x = in_step(multiply_add(x, half, one))
    return x


def arithmetic_rate() -> float:
    """Measure the fused multiply-adds per cycle, rounded to a whole number."""
    loop = compiled(partial(of_numbers, _much_arithmetic), 1)
    return max(round(LENGTH / (LANES * cycles_of(loop, 1))), 1)


def main() -> None:
    ports = replace(WIDE if HOST_CODES == 32 else NARROW, arithmetic=arithmetic_rate())
    columns = ("function", "float", "vector", "load", "div", "bound", "cycles", "ratio")
    title = f"instructions for {CODES} codes, bound and cycles for one"
    table = Table(*columns, title=title)
    for name in FUNCTIONS:
        operation = CODE_OPERATIONS[name]
        operands = 2 if name in ("add", "mul") else 1
        loop = compiled(operation, operands)
        counts = counts_of(loop)
        bound, cycles = counts.bound(ports) / CODES, cycles_of(loop, operands)
        numbers = (counts.arithmetic, counts.vector, counts.load, counts.division + counts.root)
        row = (*map(str, numbers), f"{bound:.2f}", f"{cycles:.2f}", f"{cycles / bound:.2f}")
        table.add_row(name, *row)
    Console().print(table)


if __name__ == "__main__":
    main()
