"""Divisions of a matrix product among cores, ranked by the modelled time.

The compiler chooses among them, and ``spyre explain`` names a faster one than a bundle's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt, prod

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.dtypes import FORMATS
from spyre.hw.cost.machine import MachineSpec
from spyre.hw.cost.models import STICK_ELEMENTS, measured_class, product_ns
from spyre.hw.counters import CostClass, Counters, OperationCounts, ProductShape

CLOSE = 0.05  # candidates whose modelled times are closer are too close to call
ALIKE = 0.01  # repeats of one kernel on a card differ by more
Cores = tuple[int, int, int, int]
"""Cores among which batches, rows, columns and the reduced dim of a product are divided."""
Splits = npt.NDArray[np.int64]
"""A row per division, a column per dim."""


class RankedDivisions(msgspec.Struct, frozen=True):
    """Candidates of one product. ``times_ns``: by candidate; ``order``: their numbers, the fastest
    first; ``spread``: error of the class, relative.

    Among those within `ALIKE` of the fastest, ones with more cores come first; equal ones are in
    the order given.
    """

    times_ns: tuple[float, ...]
    order: tuple[int, ...]
    spread: float

    @property
    def best_ns(self) -> float:
        """Time of the first one."""
        return self.times_ns[self.order[0]]

    def is_close(self, number: int) -> bool:
        """Return True if a candidate's time is too close to the best one to decide."""
        return self.times_ns[number] < (1.0 + CLOSE) * self.best_ns


def ranked(
    counts: OperationCounts, candidates: Sequence[Cores], machine: MachineSpec
) -> RankedDivisions:
    """Modelled times of a product, ``counts``, in other divisions than its own."""
    times = tuple(product_ns(divided(counts, cores), machine) for cores in candidates)
    alike = (1.0 + ALIKE) * min(times)
    keys = [(max(ns, alike), -prod(c), ns) for ns, c in zip(times, candidates, strict=True)]
    order = sorted(range(len(times)), key=keys.__getitem__)
    return RankedDivisions(times, tuple(order), machine.spread[measured_class([counts])])


def divided(counts: OperationCounts, cores: Cores) -> OperationCounts:
    """A product in another division."""
    assert counts.product is not None
    batch, rows, columns, inner = cores
    shape = replace(counts.product, batch_cores=batch, m_cores=rows, n_cores=columns, k_cores=inner)
    return replace(counts, cores=prod(cores), largest_share=0.0, product=shape)


def candidates_of(shape: ProductShape, cores: int) -> tuple[Cores, ...]:
    """Divisions of a product of whole sticks among at most ``cores`` cores, and at least half."""
    sticks = (-(-extent // STICK_ELEMENTS) for extent in (shape.n, shape.k))
    rows = splits_within([divisors(units) for units in (shape.batch, shape.m, *sticks)], cores)
    used = rows.prod(axis=1)
    return tuple(map(tuple, rows[2 * used >= used.max()].tolist()))


def division_text(counts: OperationCounts, machine: MachineSpec) -> str:
    """A line about a product: its modelled time, and that of a faster division if there is one."""
    shape = counts.product
    assert shape is not None
    own: Cores = (shape.batch_cores, shape.m_cores, shape.n_cores, shape.k_cores)
    candidates = (own, *candidates_of(shape, machine.hardware.cores))
    found = ranked(counts, candidates, machine)
    best = candidates[found.order[0]]
    text = f"modelled {found.times_ns[0] / 1e3:,.4g} us (±{found.spread:.0%}) as {cores_text(own)}"
    if found.is_close(0):
        return f"{text}; no division is faster by {CLOSE:.0%}"
    return f"{text}; {cores_text(best)} would take {found.best_ns / 1e3:,.4g} us"


def cores_text(cores: Cores) -> str:
    """A division as rows of files write it: ``m4 n8``."""
    pairs = zip("bmnk", cores, strict=True)
    return " ".join(f"{dim}{count}" for dim, count in pairs if count > 1) or "one core"


def product_counts(
    shape: ProductShape, mac_format: str, name: str = "matmul", runs: int = 1
) -> OperationCounts:
    """The counts of ``runs`` runs of a product with 16-bit results; each reads its operands."""
    batch, m, k, n = shape.batch, shape.m, shape.k, shape.n
    weight = (1 if shape.shared else batch) * n
    operand_bits = FORMATS[mac_format].bits * (batch * m + weight) * k
    work = Counters(
        rdmem_bytes=operand_bits // 8,
        wrmem_bytes=2 * batch * m * n,
        multiply_adds=batch * m * k * n,
        executions=1,
    )
    return OperationCounts(
        name=name,
        cost_class=CostClass.MATMUL,
        cores=shape.batch_cores * shape.m_cores * shape.n_cores * shape.k_cores,
        counters=work.times(runs),
        mac_format=mac_format,
        rows=batch * m,
        columns=n,
        product=shape,
    )


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a positive number, ascending."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    large = [number // n for n in reversed(small) if n * n != number]
    return (*small, *large)


def splits_within(candidates: Sequence[Sequence[int]], cores: int) -> Splits:
    """Return all combinations of one candidate per dim whose product is at most ``cores``.

    Rows are in the order of nested loops, the first dim outermost. Prefixes that use too many
    cores are dropped early, so the table stays small for any number of dims.
    """
    rows = np.ones((1, 0), np.int64)
    used = np.ones(1, np.int64)
    for options in candidates:
        column = np.asarray(options, np.int64)
        products = used[:, None] * column[None, :]
        kept, chosen = np.nonzero(products <= cores)
        rows = np.column_stack([rows[kept], column[chosen]])
        used = products[kept, chosen]
    return rows
