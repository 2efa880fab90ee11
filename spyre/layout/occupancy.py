"""Which sticks of a device tensor hold host elements: what an output has to have written.

By geometry alone, one point per stick: in every element arrangement lane 0 is the first lane of a
stick to hold a host element. The slow twin is :func:`spyre.layout.reference.host_positions`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spyre.layout.geometry import TransferGeometry
from spyre.layout.reference import host_positions


def occupied_sticks(geometry: TransferGeometry) -> NDArray[np.bool_]:
    """True per stick, shape ``device_size[:-1]``, where a copy to the host reads an element."""
    host, occupied = _first_lanes(geometry)
    for host_dim, size in enumerate(geometry.host_sizes):
        occupied &= host[host_dim] < size
    return occupied


def host_coordinates_of_stick(geometry: TransferGeometry, stick: Sequence[int]) -> tuple[int, ...]:
    """Host coordinates of the first element of a stick."""
    host, _ = _first_lanes(geometry)
    return tuple(int(coordinate[tuple(stick)]) for coordinate in host)


def viewed_sticks(
    geometry: TransferGeometry, shape: Sequence[int], strides: Sequence[int], offset: int
) -> NDArray[np.bool_]:
    """As `occupied_sticks`, for the elements of a view of the host storage only (all elements)."""
    host, valid = host_positions(geometry)
    place = np.zeros(geometry.device_size, np.int64)
    for coordinate, stride in zip(host, geometry.host_strides, strict=True):
        place += coordinate * stride
    wanted = np.full((), offset, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        wanted = wanted[..., None] + np.arange(size) * stride
    held = valid & np.isin(place, wanted)
    return occupied_sticks(geometry) & np.asarray(held.any(axis=-1))


def _first_lanes(
    geometry: TransferGeometry,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Host coordinates of lane 0 of every stick, and whether the device coordinates are valid."""
    extents = geometry.device_size[:-1]
    physical = np.zeros((len(geometry.device_size), *extents), np.int64)
    if extents:
        physical[:-1] = np.indices(extents, dtype=np.int64)
    logical = geometry.logical_coordinates(physical)
    host = np.zeros((len(geometry.host_sizes), *extents), np.int64)
    valid = np.ones(extents, np.bool_)
    walks = zip(geometry.host_dims, geometry.multipliers, geometry.limits, strict=True)
    for k, (host_dim, multiplier, limit) in enumerate(walks):
        valid &= logical[k] < limit
        if geometry.expanded[k]:
            valid &= logical[k] == 0
        if host_dim >= 0:
            host[host_dim] += multiplier * logical[k]
    return host, valid
