"""Which slice a core computes (hardware reference §4.1, step 7; SDSC reference §6.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import numpy.typing as npt
import sympy

from spyre.torch_backend.inductor.division.iteration import Iteration, symbols_of
from spyre.torch_backend.inductor.op_spec import MATMUL, OpSpec


def core_order(spec: OpSpec) -> tuple[sympy.Symbol, ...]:
    """Dims in the order in which core numbers run through them, the fastest first.

    That is the iteration's order. A matmul whose reduced dim is divided has that one first, so that
    the cores which add up one output tile are neighbours on the ring; its ``op_info`` may say that
    it has not (``k_fast``).
    """
    k_fast = spec.op == MATMUL and spec.op_info.get("k_fast", True)
    return _with_first(tuple(spec.iteration_space), split_reductions(spec) if k_fast else ())


def order_of(
    iteration: Iteration, splits: Mapping[sympy.Symbol, int], *, k_fast: bool
) -> tuple[sympy.Symbol, ...]:
    """:func:`core_order` for ``splits`` that no OpSpec has yet."""
    if not k_fast or not iteration.is_matmul:
        return iteration.symbols
    first = [s for s in iteration.symbols if s in iteration.reduced and splits[s] > 1]
    return _with_first(iteration.symbols, first)


def _with_first(
    symbols: tuple[sympy.Symbol, ...], first: Sequence[sympy.Symbol]
) -> tuple[sympy.Symbol, ...]:
    return (*first, *(symbol for symbol in symbols if symbol not in first))


def split_reductions(spec: OpSpec) -> list[sympy.Symbol]:
    """Dims whose terms several cores add up: split, and not in what the operation writes."""
    outputs = [arg for arg in spec.args if not arg.is_input]
    written = {symbol for arg in outputs for symbol in symbols_of(arg.device_coordinates)}
    space = spec.iteration_space.items()
    return [symbol for symbol, (_, cores) in space if cores > 1 and symbol not in written]


def core_slices(
    order: Sequence[sympy.Symbol], splits: Mapping[sympy.Symbol, int]
) -> dict[sympy.Symbol, npt.NDArray[np.int64]]:
    """Per dim, the index of the slice of every core (cores 0 up to the product of ``splits``)."""
    cores = np.arange(prod(splits[symbol] for symbol in order))
    found: dict[sympy.Symbol, npt.NDArray[np.int64]] = {}
    for symbol in order:
        cores, found[symbol] = np.divmod(cores, splits[symbol])
    return found
