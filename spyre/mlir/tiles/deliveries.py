"""Deliveries between tiles: who produces, who consumes, by groups (KTIR reference, M9).

Sets of tiles are enumerated: the grid has at most 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spyre.mlir.program import AffineSet
from spyre.mlir.tiles.reading import affine
from spyre.mlir.tiles.syntax import Alias, TileModule, TileOp, Type

Members = tuple[tuple[int, ...], ...]
"""The tiles of each group, in ascending order; groups in ascending order of their number."""
_RANGE = np.arange(-64, 128)


def groups_of(module: TileModule, future: Type) -> tuple[int, ...]:
    """Numbers of the groups of a future."""
    text = future.details[1]
    found = module.resolved(Alias(text[1:])) if text[0] == "#" else affine(text, 0)
    return () if found is None else _points(found, ())


def members(module: TileModule, value: Any, future: Type) -> Members | None:
    """The tiles in ``value``, a set of tiles per group; None if it is no such set."""
    points = module.resolved(value)
    if not isinstance(points, AffineSet) or points.n_dims != 1 or points.n_symbols > 1:
        return None
    groups = groups_of(module, future)
    return tuple(_points(points, (group,)[: points.n_symbols]) for group in groups)


def sources(
    module: TileModule, op: TileOp, producers: Members, consumers: Members
) -> dict[int, tuple[int, ...]]:
    """The tiles that each consumer depends on: those named, else all producers of its group."""
    points = module.resolved(op.fields.get("dependency"))
    return {
        tile: made if points is None else _points(points, (tile,) * points.n_symbols)
        for made, wanted in zip(producers, consumers, strict=True)
        for tile in wanted
    }


def _points(points: Any, symbols: Sequence[int]) -> tuple[int, ...]:
    inside = np.broadcast_to(points.contains((_RANGE,), symbols), _RANGE.shape)
    return tuple(_RANGE[inside].tolist())
