"""How the inputs of golden vectors are drawn: numbers in double precision, rounded when stored."""

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


def moments(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Pairs of a mean and a mean square above its square."""
    mean = rng.uniform(-1, 1, shape[:-1])
    return np.stack([mean, mean * mean + rng.uniform(0.5, 2.0, shape[:-1])], axis=-1)
