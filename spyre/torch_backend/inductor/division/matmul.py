"""Pass 2: matmuls are divided as a cost model says; one per generation of the compiler.

Scores are in microseconds but rank divisions only, they do not predict times. `june` and `august`
are the models of hardware reference §3.2; a further one is a function and a row of `PLANNERS`.
Which dims are batch, M, N and K: §4.1, step 4.
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
    """``output[batch, M, N] = Σ_K left[batch, M, K] · right[batch, K, N]``.

    ``shared_weight``: one right operand serves all batches. Sizes are in elements, those along
    sticks in whole sticks.
    """

    batch: tuple[DivisibleDim, ...]
    row: DivisibleDim
    column: DivisibleDim
    inner: DivisibleDim
    shared_weight: bool

    @property
    def dims(self) -> tuple[DivisibleDim, ...]:
        return (*self.batch, self.row, self.column, self.inner)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Elements of batch, M, N and K."""
        row, column, inner = (dim.units * dim.unit for dim in (self.row, self.column, self.inner))
        return prod(dim.units * dim.unit for dim in self.batch), row, column, inner


def matmul_dims(iteration: Iteration, *, several_rows: bool) -> MatmulDims | str:
    """The roles of the dims, or why the cost model has none for this operation.

    N is the one dim of the result along sticks; M, of its other dims, the one only one input has.
    ``several_rows`` (planner August): of several such dims the innermost of the result is M, the
    others are batches of a shared weight. K is the one reduced dim.
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
    if len(single) > 1 and not several_rows:
        return f"{len(single)} row dims belong to one input alone"
    row = single[-1]
    batch = tuple(dim for dim in rows if dim is not row)
    shared = several_rows and (len(single) > 1 or not batch)
    return MatmulDims(batch, row, columns[0], inner[0], shared)


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
"""Rows of M that the array of multipliers takes in one pass."""
COHORT = 8
"""Cores that can share a broadcast before they wait for each other."""


@dataclass(frozen=True, slots=True)
class MatmulSplits:
    """Ways to divide a matmul: cores along batch, M, N, K, one entry per way; ``cores`` in all."""

    batch: Counts
    row: Counts
    column: Counts
    inner: Counts
    cores: int

    @property
    def used(self) -> Counts:
        product: Counts = self.batch * self.row * self.column * self.inner
        return product


def june_scores(dims: MatmulDims, splits: MatmulSplits) -> Scores:
    """Scores of June 2026: ``(compute + hbm + psum + short rows) · batch^1.4``."""
    batch, rows, columns, inner = dims.sizes
    passes = np.maximum(1.0, rows / splits.row / ROWS_PER_PASS)
    filled = _mapped(passes, lambda p: min(1.0, (p / 8) ** 0.5))
    compute = batch * rows * columns * inner / splits.used / (MACS_PER_US * filled)
    fan = np.maximum(splits.row, splits.column)
    hbm = _hbm_us(dims, batch) * np.maximum(1.0, fan / COHORT)
    psum = (splits.inner - 1) * (batch * rows * columns) * 1.4e-4
    short_rows = _mapped(passes, lambda p: 50 * max(0.0, log2(8 / p)))
    score: Scores = (compute + hbm + psum + short_rows) * _mapped(splits.batch, lambda b: b**1.4)
    return score


def august_scores(dims: MatmulDims, splits: MatmulSplits) -> Scores:
    """Scores of August 2026: a sum of costs, without a factor for batches."""
    batch, rows, columns, inner = dims.sizes
    passes = np.maximum(1.0, rows / splits.row / ROWS_PER_PASS)
    filled = _mapped(passes, lambda p: min(1.0, (p / 5) ** 0.25))
    compute = batch * rows * columns * inner / splits.used / (MACS_PER_US * filled)
    fan = np.maximum(splits.row, splits.column) if dims.shared_weight else splits.column
    waiting = _mapped(fan, lambda n: max(1.0, (n / COHORT) ** 0.75))
    hbm = _hbm_us(dims, 1 if dims.shared_weight else batch) * waiting
    tiles = splits.batch * splits.row * splits.column
    per_element = 1e-3 if dims.shared_weight else 1e-4
    psum = (splits.inner - 1) * (batch * rows * columns / tiles) * per_element
    idle = _mapped(splits.used, lambda used: 150 * log2(splits.cores / used))
    score: Scores = compute + hbm + psum + _tile_shape_us(dims, splits) + idle
    return score


def _hbm_us(dims: MatmulDims, weights: int) -> float:
    """Time to move both operands and the result once; the right operand has ``weights`` batches."""
    batch, rows, columns, inner = dims.sizes
    elements = batch * rows * inner + weights * inner * columns + batch * rows * columns
    return elements * ELEMENT_BYTES / HBM_BYTES_PER_US


def _tile_shape_us(dims: MatmulDims, splits: MatmulSplits) -> Scores:
    """August's costs of tiles that are too short, too wide, or split where it does not pay."""
    _, rows, _, _ = dims.sizes
    target = max(ROWS_PER_PASS // 2, min(splits.cores // 2, max(1, rows // (4 * ROWS_PER_PASS))))
    per_core = rows // splits.row
    few_rows = _mapped(splits.row, lambda m: 10 * _steps(target / m))
    short = _mapped(per_core, lambda m: 30 * _steps(16 / m))
    wide = _mapped(dims.sizes[2] // splits.column, lambda n: 25 * _steps(n / 512))
    long_enough = (per_core >= 16).astype(np.float64)
    rule = _shared_tile_us if dims.shared_weight else _batched_tile_us
    return few_rows + short + wide + rule(dims, splits, long_enough)


def _shared_tile_us(dims: MatmulDims, splits: MatmulSplits, long_enough: Scores) -> Scores:
    """One weight for all: narrow results want narrow tiles, long reductions few columns' splits."""
    _, _, columns, inner = dims.sizes
    narrow = 5 * _steps(512 * COHORT / columns)
    narrow_us = _mapped(columns // splits.column, lambda n: narrow * _steps(n / 128))
    long = 10 * _steps(inner / columns)
    return long_enough * narrow_us + _mapped(splits.column, lambda n: long * log2(n))


def _batched_tile_us(dims: MatmulDims, splits: MatmulSplits, long_enough: Scores) -> Scores:
    """A weight per batch: short results of long reductions want their columns together."""
    _, _, columns, inner = dims.sizes
    long = 20 * _steps(inner / columns)
    columns_us = long_enough * _mapped(splits.column, lambda n: long * log2(n))
    return columns_us + _mapped(splits.batch, lambda b: 10 * log2(b))


def _steps(ratio: float) -> float:
    """Doublings above 1."""
    return max(0.0, log2(ratio))


def _mapped(values: npt.NDArray[np.generic], function: Callable[[float], float]) -> Scores:
    """``function`` of every entry, computed once per distinct one by Python's own mathematics:
    equal splits get equal scores on every machine, and ties go to the first.
    """
    distinct, places = np.unique(values, return_inverse=True)
    return np.array([function(value) for value in distinct.tolist()], np.float64)[places]


@dataclass(frozen=True, slots=True)
class MatmulPlanner:
    """A named strategy.

    ``several_rows``: see `matmul_dims`. ``keeps_cores``: a result that uses fewer cores than the
    default division is refused.
    """

    scores: Callable[[MatmulDims, MatmulSplits], Scores]
    several_rows: bool
    keeps_cores: bool


PLANNERS: dict[str, MatmulPlanner] = {
    "june": MatmulPlanner(june_scores, several_rows=False, keeps_cores=True),
    "august": MatmulPlanner(august_scores, several_rows=True, keeps_cores=False),
}


@dataclass(frozen=True, slots=True)
class MatmulChoice:
    """What a planner says: ``splits`` of all dims, or None; ``why`` in words."""

    splits: dict[str, int] | None
    why: str


def divide_matmul(
    iteration: Iteration, cores: int, planner: str, default: Mapping[str, int]
) -> MatmulChoice:
    """The division with the least score; of equal ones the first, batch, M, N, K ascending.

    ``default``: the division of pass 3, which stands where the planner has no answer.
    """
    strategy = PLANNERS[planner]
    dims = matmul_dims(iteration, several_rows=strategy.several_rows)
    if isinstance(dims, str):
        return MatmulChoice(None, f"not asked, {dims}")
    rows = splits_within([dim.splits(cores) for dim in dims.dims], cores)
    scores = strategy.scores(dims, _as_matmul(rows, cores))
    best = int(np.argmin(scores))
    chosen = [int(count) for count in rows[best]]
    roles = [*(f"b={d.symbol}" for d in dims.batch)]
    roles += [f"{n}={d.symbol}" for n, d in zip("mnk", dims.dims[-3:], strict=True)]
    text = ", ".join(f"{role}:{count}" for role, count in zip(roles, chosen, strict=True))
    text += f" with score {scores[best]:.1f}"
    if strategy.keeps_cores and prod(chosen) < prod(default.values()):
        fewer = f"{prod(chosen)} cores, the default {prod(default.values())}"
        return MatmulChoice(None, f"{text} refused, it uses {fewer}")
    symbols = (dim.symbol for dim in dims.dims)
    return MatmulChoice(dict(zip(symbols, chosen, strict=True)), f"{text}, of {len(rows)}")


def _as_matmul(rows: Splits, cores: int) -> MatmulSplits:
    batch = rows[:, :-3].prod(axis=1)
    return MatmulSplits(batch, rows[:, -3], rows[:, -2], rows[:, -1], cores)
