"""Which dims of a matmul are batch, M, N and K (hardware reference §4.1, step 4)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import sympy

from spyre.torch_backend.inductor.division.iteration import Iteration, IterationDim, symbols_of


@dataclass(frozen=True, slots=True)
class MatmulDims:
    """``output[batch, M, N] = Σ_K left[batch, M, K] · right[batch, K, N]``.

    ``shared_weight``: one right operand serves all batches. Sizes are in elements, those along
    sticks in whole sticks.
    """

    batch: tuple[IterationDim, ...]
    row: IterationDim
    column: IterationDim
    inner: IterationDim
    shared_weight: bool

    @property
    def dims(self) -> tuple[IterationDim, ...]:
        """Batch, M, N, K."""
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


def _inputs_with(iteration: Iteration, symbol: sympy.Symbol) -> int:
    inputs = [tensor for tensor in iteration.tensors if tensor.is_input]
    return sum(symbol in symbols_of(tensor.device_coordinates) for tensor in inputs)
