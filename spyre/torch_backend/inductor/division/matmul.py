"""Pass 2 of work division: a cost model chooses how a matmul is divided.

The model is the one of the June 2026 compiler (hardware reference §3.2). Its scores, in
microseconds, rank divisions of one matmul; they do not predict execution times. Roles of the dims
(batch, M, N, K): §4.1, step 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log2, prod

import numpy as np
import numpy.typing as npt

from spyre.torch_backend.inductor.division.iteration import (
    DivisibleDim,
    Iteration,
    Splits,
    splits_within,
)


@dataclass(frozen=True, slots=True)
class MatmulDims:
    """Roles of the dims in ``output[batch, M, N] = Σ_K left[batch, M, K] · right[batch, K, N]``."""

    batch: tuple[DivisibleDim, ...]
    row: DivisibleDim
    column: DivisibleDim
    inner: DivisibleDim

    @property
    def dims(self) -> tuple[DivisibleDim, ...]:
        return (*self.batch, self.row, self.column, self.inner)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Elements of batch, M, N and K; dims along sticks are rounded up to whole sticks."""
        row, column, inner = (dim.units * dim.unit for dim in (self.row, self.column, self.inner))
        return prod(dim.units * dim.unit for dim in self.batch), row, column, inner


def matmul_dims(iteration: Iteration) -> MatmulDims | str:
    """Return the roles of the dims, or the reason why the cost model does not apply.

    N is the one result dim along sticks; M is the one other result dim that only one input has; K
    is the one reduced dim.
    """
    if not iteration.is_matmul:
        return f"{iteration.name} is no matmul"
    columns = [dim for dim in iteration.dims if dim.is_output and dim.along_sticks]
    rows = [dim for dim in iteration.dims if dim.is_output and not dim.along_sticks]
    inner = [dim for dim in iteration.dims if not dim.is_output]
    single = [dim for dim in rows if _inputs_with(iteration, dim.symbol) == 1]
    if len(columns) != 1:
        return f"{len(columns)} dims of the result lie along sticks"
    if len(inner) != 1:
        return f"{len(inner)} dims are reduced"
    if not single:
        return "no row dim belongs to one input alone"
    if len(single) > 1:
        return f"{len(single)} row dims belong to one input alone"
    batch = tuple(dim for dim in rows if dim is not single[0])
    return MatmulDims(batch, single[0], columns[0], inner[0])


def _inputs_with(iteration: Iteration, symbol: str) -> int:
    dim = iteration.symbols.index(symbol)
    return sum(tensor.has(dim) for tensor in iteration.op.inputs)


Scores = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

MACS_PER_US = 1.536e6
"""Peak of a core, multiply-adds per microsecond."""
HBM_BYTES_PER_US = 204_800
ELEMENT_BYTES = 2
ROWS_PER_PASS = 8
"""Rows of M that the multiplier array processes in one pass."""
COHORT = 8
"""Cores that can share a broadcast without waiting for each other."""


@dataclass(frozen=True, slots=True)
class MatmulSplits:
    """Divisions of a matmul: cores along batch, M, N and K, one entry per division."""

    batch: Counts
    row: Counts
    column: Counts
    inner: Counts

    @classmethod
    def of(cls, rows: Splits) -> MatmulSplits:
        """From a column per dim, in the order of `MatmulDims.dims`."""
        return cls(rows[:, :-3].prod(axis=1), rows[:, -3], rows[:, -2], rows[:, -1])

    @property
    def cores(self) -> Counts:
        """Number of cores of each division."""
        product: Counts = self.batch * self.row * self.column * self.inner
        return product


def scores(dims: MatmulDims, splits: MatmulSplits) -> Scores:
    """Return the score of each division: ``(compute + hbm + psum + short rows) · batch^1.4``."""
    batch, rows, columns, inner = dims.sizes
    passes = np.maximum(1.0, rows / splits.row / ROWS_PER_PASS)
    filled = _mapped(passes, lambda p: min(1.0, (p / 8) ** 0.5))
    compute = batch * rows * columns * inner / splits.cores / (MACS_PER_US * filled)
    elements = batch * rows * inner + batch * inner * columns + batch * rows * columns
    fan = np.maximum(splits.row, splits.column)
    hbm = elements * ELEMENT_BYTES / HBM_BYTES_PER_US * np.maximum(1.0, fan / COHORT)
    psum = (splits.inner - 1) * (batch * rows * columns) * 1.4e-4
    short_rows = _mapped(passes, lambda p: 50 * max(0.0, log2(8 / p)))
    score: Scores = (compute + hbm + psum + short_rows) * _mapped(splits.batch, lambda b: b**1.4)
    return score


def _mapped(values: npt.NDArray[np.generic], function: Callable[[float], float]) -> Scores:
    """Apply ``function`` to every entry, once per distinct value.

    Python's own mathematics gives equal values equal scores on every machine, so ties are stable.
    """
    distinct, inverse = np.unique(values, return_inverse=True)
    return np.array([function(value) for value in distinct.tolist()], np.float64)[inverse]


def divide_matmul(
    iteration: Iteration, cores: int, default: Mapping[str, int]
) -> tuple[dict[str, int] | None, str]:
    """Return the division with the lowest score, per dim, and the reason in words.

    Ties go to the first in the order of batch, M, N, K, ascending. None if the model does not apply
    or its division uses fewer cores than ``default``, the division of pass 3.
    """
    dims = matmul_dims(iteration)
    if isinstance(dims, str):
        return None, f"not applied, {dims}"
    rows = splits_within([dim.splits(cores) for dim in dims.dims], cores)
    score = scores(dims, MatmulSplits.of(rows))
    best = int(np.argmin(score))
    chosen = [int(count) for count in rows[best]]
    roles = [*(f"b={d.symbol}" for d in dims.batch)]
    roles += [f"{n}={d.symbol}" for n, d in zip("mnk", dims.dims[-3:], strict=True)]
    text = ", ".join(f"{role}:{count}" for role, count in zip(roles, chosen, strict=True))
    text += f" with score {score[best]:.1f}"
    if prod(chosen) < prod(default.values()):
        fewer = f"{prod(chosen)} cores, the default {prod(default.values())}"
        return None, f"{text} refused, it uses {fewer}"
    symbols = (dim.symbol for dim in dims.dims)
    return dict(zip(symbols, chosen, strict=True)), f"{text}, of {len(rows)}"
