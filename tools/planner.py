"""Divisions by torch-spyre's planner of June 2026 of products in Granite 3.3 8B and Llama 3.1 8B,
by its public formula (hardware reference §3.2), which this compiler used before the cost model.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2, prod

from spyre.hw.cost import Cores, divisors
from spyre.hw.cost.divisions import splits_within
from spyre.hw.counters import ProductShape

CORES = 32
MACS_PER_US, HBM_BYTES_PER_US = 1.536e6, 204_800
LINEARS = {
    "q, o": (4096, 4096),
    "k, v": (4096, 1024),
    "Granite gate, up": (4096, 12800),
    "Granite down": (12800, 4096),
    "Llama gate, up": (4096, 14336),
    "Llama down": (14336, 4096),
}
"""Extent of the reduced dim, and columns, by layer; both models have 32 heads of 128 elements."""
ROWS = (1, 64, 512, 2048)
HEADS, DEPTH = 32, 128
ALTERNATING = (True, True, True)


def products() -> Mapping[str, ProductShape]:
    """Return products by name: linears of some rows, attention over 512 and 2048 positions."""
    linears = {
        f"{name}, {rows} rows": ProductShape(m=rows, k=k, n=n)
        for name, (k, n) in LINEARS.items()
        for rows in ROWS
    }
    heads = {"batch": HEADS, "interleaved": ALTERNATING}
    attention = {}
    for length in (512, 2048):
        for rows in (1, length):
            scores = ProductShape(m=rows, k=DEPTH, n=length, **heads)
            values = ProductShape(m=rows, k=length, n=DEPTH, **heads)
            attention[f"scores, {rows} x {length}"] = scores
            attention[f"values, {rows} x {length}"] = values
    return {**linears, **attention}


def planner_division(shape: ProductShape) -> Cores:
    """Return the first division with the least score, or the default if that uses more cores."""
    units = (shape.batch, shape.m, -(-shape.n // 64), -(-shape.k // 64))
    rows: list[Cores] = [tuple(row) for row in _candidates(units)]
    best = min(rows, key=lambda cores: score(shape, cores))
    default = default_division(units)
    return default if prod(best) < prod(default) else best


def _candidates(units: tuple[int, ...]) -> list[list[int]]:
    found: list[list[int]] = splits_within([divisors(n) for n in units], CORES).tolist()
    return found


def score(shape: ProductShape, cores: Cores) -> float:
    """Return the microseconds of a division by the formula."""
    batch, rows, columns, inner = cores
    passes = max(1.0, shape.m / rows / 8)
    macs = shape.batch * shape.m * shape.n * shape.k
    compute = macs / prod(cores) / (MACS_PER_US * min(1.0, (passes / 8) ** 0.5))
    elements = shape.batch * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
    memory = 2 * elements / HBM_BYTES_PER_US * max(1.0, max(rows, columns) / 8)
    sums = (inner - 1) * shape.batch * shape.m * shape.n * 1.4e-4
    few_rows = 50 * max(0.0, log2(8 / passes))
    return float((compute + memory + sums + few_rows) * batch**1.4)


def default_division(units: tuple[int, ...]) -> Cores:
    """Divide the dims of the result, the longest first, then the reduced one, while cores last."""
    splits, left = [1, 1, 1, 1], CORES
    for dim in (*sorted(range(3), key=lambda k: -units[k]), 3):
        splits[dim] = max(n for n in divisors(units[dim]) if n <= left)
        left //= splits[dim]
    return splits[0], splits[1], splits[2], splits[3]
