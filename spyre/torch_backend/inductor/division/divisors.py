"""Divisors of extents, and the ways to share cores among several dims."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt

import numpy as np
import numpy.typing as npt

Splits = npt.NDArray[np.int64]
"""One row per way to divide, one column per dim."""


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    large = [number // n for n in reversed(small) if n * n != number]
    return (*small, *large)


def core_split(units: int, cores: int) -> int:
    """The largest divisor of ``units`` that is at most ``cores`` (≥ 1)."""
    return max(n for n in range(1, min(units, cores) + 1) if units % n == 0)


def splits_within(candidates: Sequence[Sequence[int]], cores: int) -> Splits:
    """Every choice of one candidate per dim whose product is at most ``cores``.

    Rows are in the order of nested loops, the first dim outermost. Prefixes that use too many
    cores are dropped on the way, so the table stays small for any number of dims.
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
