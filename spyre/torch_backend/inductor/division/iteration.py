"""The dims of an operation that can be divided among cores, in units that are not split, and the
possible divisions.

Which dims run along sticks, are reduced, or must stay whole follows from the tensors' pitches
(hardware reference §4.1, steps 1 and 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isqrt, lcm

import numpy as np
import numpy.typing as npt

from spyre.hw.ops import Category, Family, find_op
from spyre.torch_backend.inductor.bundles.kernel_op import KernelOp
from spyre.torch_backend.program import OpKind


@dataclass(frozen=True, slots=True)
class DivisibleDim:
    """One dim of an operation's iteration space.

    ``elements``: its extent. ``unit``: elements that are not divided: those of a stick if sticks
    run along the dim, else 1. ``is_output``: the result has the dim (else it is reduced).
    ``along_sticks``: sticks of some tensor run along it. ``undivided_reason``: why it cannot
    be divided, "" if it can.
    """

    symbol: str
    elements: int
    unit: int
    is_output: bool
    along_sticks: bool
    undivided_reason: str = ""

    @property
    def units(self) -> int:
        """Number of units; splits are divisors of it."""
        return -(-self.elements // self.unit)

    def splits(self, cores: int) -> list[int]:
        """Return the possible numbers of slices, at most ``cores``, ascending."""
        if self.undivided_reason:
            return [1]
        return [n for n in divisors(self.units) if n <= cores]

    def elements_per_core(self, splits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the elements of the first slice for each of ``splits``."""
        return np.minimum(self.units // splits * self.unit, self.elements)


@dataclass(frozen=True, slots=True)
class Iteration:
    """The dims of an operation, in iteration order."""

    op: KernelOp
    is_matmul: bool
    dims: tuple[DivisibleDim, ...]

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(dim.symbol for dim in self.dims)

    @property
    def reduced(self) -> frozenset[str]:
        """Symbols of the reduced dims."""
        return frozenset(dim.symbol for dim in self.dims if not dim.is_output)


def read_iteration(op: KernelOp) -> Iteration:
    """Return the dims of ``op``, whether or not it is divided already."""
    known = find_op(op.name)
    family = known.family if known is not None else None
    is_matmul = known is not None and known.category is Category.MATMUL
    outputs, dims = _output_dims(op), []
    for k, (symbol, extent) in enumerate(zip(op.symbols, op.extents, strict=True)):
        lanes = [tensor.lanes for tensor in op.tensors if tensor.lane == k]
        dim = DivisibleDim(symbol, extent, lcm(*lanes), k in outputs, bool(lanes))
        dims.append(replace(dim, undivided_reason=_undivided_reason(dim, op, k, family)))
    return Iteration(op, is_matmul, tuple(dims))


def _output_dims(op: KernelOp) -> set[int]:
    """Return the dims of the result: all dims, or those a reduction's output moves along, above its
    stick.
    """
    if op.kind not in (OpKind.REDUCTION, OpKind.MATMUL):
        return set(range(len(op.extents)))
    return {k for dim in op.device_dims(len(op.tensors) - 1) for k, _ in dim.walked}


def _undivided_reason(dim: DivisibleDim, op: KernelOp, number: int, family: Family | None) -> str:
    padded = dim.along_sticks and dim.elements % dim.unit != 0
    if family is Family.TOPK:
        return "topk runs on one core"
    if family is Family.RESTICKIFY and padded:
        return "a restickify does not divide dims it pads"
    if family is Family.REDUCTION and padded and not op.output.has(number):
        return "its padding is masked by coordinates"
    # SDSC reference §6.4: a table that is read through an index is not divided.
    if op.rows and number in op.dims_of(0):
        return "all cores read one table from one start"
    return ""


Splits = npt.NDArray[np.int64]
"""A row per division, a column per dim."""


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors of a positive number, ascending."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    large = [number // n for n in reversed(small) if n * n != number]
    return (*small, *large)


def core_split(units: int, cores: int) -> int:
    """Return the largest divisor of ``units`` that is at most ``cores`` (≥ 1)."""
    return max(n for n in range(1, min(units, cores) + 1) if units % n == 0)


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
