"""Which slice a core computes (hardware reference §4.1, step 7; SDSC reference §6.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import numpy.typing as npt
import sympy

from spyre.torch_backend.inductor.division.iteration import Iteration, read_iteration
from spyre.torch_backend.inductor.op_spec import OpSpec


def core_order(spec: OpSpec, *, k_fast: bool = True) -> tuple[sympy.Symbol, ...]:
    """Dims in the order in which core numbers run through them, the fastest first.

    That is the iteration's order. With ``k_fast``, a matmul whose reduced dim is divided has that
    one first, so that the cores which add up one output tile are neighbours on the ring.
    """
    splits = {symbol: cores for symbol, (_, cores) in spec.iteration_space.items()}
    return order_of(read_iteration(spec), splits, k_fast=k_fast)


def order_of(
    iteration: Iteration, splits: Mapping[sympy.Symbol, int], *, k_fast: bool
) -> tuple[sympy.Symbol, ...]:
    """:func:`core_order` for ``splits`` that no OpSpec has yet."""
    if not k_fast or not iteration.is_matmul:
        return iteration.symbols
    first = [s for s in iteration.symbols if s in iteration.reduced and splits[s] > 1]
    return (*first, *(symbol for symbol in iteration.symbols if symbol not in first))


def core_slices(
    order: Sequence[sympy.Symbol], splits: Mapping[sympy.Symbol, int]
) -> dict[sympy.Symbol, npt.NDArray[np.int64]]:
    """Per dim, the index of the slice of every core (cores 0 up to the product of ``splits``)."""
    cores = np.arange(prod(splits[symbol] for symbol in order))
    found: dict[sympy.Symbol, npt.NDArray[np.int64]] = {}
    for symbol in order:
        cores, found[symbol] = np.divmod(cores, splits[symbol])
    return found
