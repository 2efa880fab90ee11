"""Draws inputs of golden vectors: numbers in double precision, rounded when stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
TABLE_ROWS = 5
"""Rows of the table that `identity` gathers from."""


def normals(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normal numbers, a few zeros of both signs and large ones."""
    values = rng.standard_normal(shape) * 2.0
    flat = values.reshape(-1)
    flat[: min(4, flat.size)] = [0.0, -0.0, 30.0, -30.0][: flat.size]
    return values


def positives(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.exp2(rng.uniform(-12, 12, shape))


def quarters(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Multiples of 1/4 from -4 to 4."""
    return rng.integers(-16, 17, shape) / 4


def nonzero(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    values = rng.standard_normal(shape)
    return values + np.copysign(0.5, values)


def powers(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """±1/2, ±1, ±2."""
    return rng.choice(np.array([-2, -1, -0.5, 0.5, 1, 2]), shape)


def truths(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 2, shape).astype(np.float64)


def rows_of_table(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, TABLE_ROWS, shape)


def bytes_(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Every signed 8-bit integer."""
    return rng.integers(-128, 128, shape)


def nibbles(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Every signed 4-bit integer."""
    return rng.integers(-8, 8, shape)


def words(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Every signed 32-bit integer, and its ends."""
    return _starting_with([0, -1, -(2**31), 2**31 - 1], rng.integers(-(2**31), 2**31, shape))


def floats_of_words(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Around and beyond the 32-bit integers; infinities and NaN."""
    values = rng.standard_normal(shape) * np.exp2(rng.uniform(-2, 33, shape))
    ends = [2.0**31, -(2.0**31), np.inf, -np.inf, np.nan, 0.5, -0.5, -0.0, 1.5, -2.5]
    return _starting_with(ends, values)


def sixteenths(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Multiples of 1/16, many of them near 0."""
    return np.rint(rng.standard_normal(shape) * np.exp2(rng.uniform(0, 10, shape))) / 16


def eight_bit_floats(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """All 254 numbers of 4 exponent and 3 fraction bits: the smallest is 2^-9, the largest 448."""
    exponent, fraction = np.divmod(np.arange(127), 8)
    numbers = np.ldexp(fraction + 8.0 * (exponent > 0), np.maximum(exponent, 1) - 10)
    return rng.choice(np.concatenate([numbers, -numbers]), shape)


def beyond_eight_bits(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """From far below 2^-9 to beyond 448."""
    values = rng.standard_normal(shape) * np.exp2(rng.uniform(-12, 10, shape))
    return _starting_with([0.0, -0.0, 448.0, -448.0, 463.0, 465.0, -(2.0**20), 2.0**-10], values)


def _starting_with(first: list[Any], values: Array) -> Array:
    values.reshape(-1)[: len(first)] = first
    return values


def moments(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Pairs of a mean and a mean square above its square."""
    mean = rng.uniform(-1, 1, shape[:-1])
    return np.stack([mean, mean * mean + rng.uniform(0.5, 2.0, shape[:-1])], axis=-1)
