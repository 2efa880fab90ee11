"""Reference host ↔ device copies: per-element index arithmetic over the whole device tensor.

The compiled copies of `spyre.hw.device.transfer` are compared with these. Both return new arrays;
device memory is a flat array of bytes, host storage a 1-D array as `spyre.dtypes.HostDtype`
describes. Rules: runtime reference §3.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spyre.dtypes import (
    NumericRules,
    bytes_to_codes,
    codes_to_bytes,
    decode_device,
    decode_host,
    encode_copied,
    encode_host,
)
from spyre.errors import LaunchError
from spyre.layout import (
    SpyreTensorLayout,
    TransferGeometry,
    logical_columns,
    transfer_geometry,
)
from spyre.layout.geometry import coarse_to_fine

DEFAULT_RULES = NumericRules()


def host_to_device_reference(
    host_storage: NDArray[Any],
    storage_offset: int,
    layout: SpyreTensorLayout,
    dma_sizes: Sequence[int],
    dma_strides: Sequence[int],
    host_dtype: str,
    *,
    host_strides: Sequence[int] | None = None,
    rules: NumericRules = DEFAULT_RULES,
) -> NDArray[np.uint8]:
    """Device bytes (1-D, ``layout.device_bytes``) of a host tensor, padding positions zero.

    ``dma_strides`` are the strides the layout was made for; ``host_strides`` those of the given
    storage when they differ. Errors as in `transfer_geometry`; SPY324 when the storage is short.
    """
    geometry = transfer_geometry(layout, dma_sizes, dma_strides)
    offsets, valid = _storage_offsets(geometry, storage_offset, host_strides)
    _check_storage(offsets, valid, host_storage)
    values = decode_host(host_storage[offsets[valid]], host_dtype)
    codes = np.zeros(layout.device_size, dtype=layout.data_format.code_dtype)
    codes[valid] = encode_copied(values, host_dtype, layout.device_dtype, rules)
    return codes_to_bytes(codes, layout.device_dtype)


def device_to_host_reference(
    device_memory: NDArray[np.uint8],
    host_storage: NDArray[Any],
    storage_offset: int,
    layout: SpyreTensorLayout,
    dma_sizes: Sequence[int],
    dma_strides: Sequence[int],
    host_dtype: str,
    *,
    host_strides: Sequence[int] | None = None,
    rules: NumericRules = DEFAULT_RULES,
) -> NDArray[Any]:
    """Copy of ``host_storage`` with the tensor's elements replaced by those on the device.

    An expanded dim (stride 0) is read at its first position. Errors as in
    `host_to_device_reference`; SPY324 when ``device_memory`` is not the layout's bytes.
    """
    geometry = transfer_geometry(layout, dma_sizes, dma_strides)
    offsets, valid = _storage_offsets(geometry, storage_offset, host_strides)
    valid &= _first_of_expanded(geometry)
    _check_storage(offsets, valid, host_storage)
    if device_memory.size != layout.device_bytes:
        raise LaunchError(
            "SPY324",
            "device bytes do not match the tensor layout",
            expected=f"{layout.device_bytes} bytes for {layout}",
            found=f"{device_memory.size} bytes",
        )
    codes = bytes_to_codes(device_memory, layout.device_dtype).reshape(layout.device_size)
    values = decode_device(codes[valid], layout.device_dtype, rules)
    result = host_storage.copy()
    result[offsets[valid]] = encode_host(values, host_dtype, rules)
    return result


def _storage_offsets(
    geometry: TransferGeometry, storage_offset: int, host_strides: Sequence[int] | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Host storage element of every device position, and where it is valid."""
    host, valid = host_positions(geometry)
    strides = geometry.host_strides if host_strides is None else tuple(host_strides)
    offsets = np.full(geometry.device_size, storage_offset, dtype=np.int64)
    for coordinate, stride in zip(host, strides, strict=True):
        offsets += coordinate * stride
    return offsets, valid


def _first_of_expanded(geometry: TransferGeometry) -> NDArray[np.bool_]:
    first = np.ones(geometry.device_size, dtype=np.bool_)
    indices = np.indices(geometry.device_size, sparse=True)
    for k, expanded in enumerate(expanded_dims(geometry)):
        if expanded:
            first &= indices[k] == 0
    return first


def _check_storage(
    offsets: NDArray[np.int64], valid: NDArray[np.bool_], storage: NDArray[Any]
) -> None:
    used = offsets[valid]
    if used.size and (used.min() < 0 or used.max() >= storage.size):
        raise LaunchError(
            "SPY324",
            "host storage is too small for the tensor",
            expected=f"elements {used.min()} to {used.max()}",
            found=f"{storage.size} elements",
        )


# --- positions ------------------------------------------------------------------------------------


def expanded_dims(geometry: TransferGeometry) -> tuple[bool, ...]:
    """Per device dim: True if all its steps read one host element (stride 0)."""
    dims = zip(geometry.host_dims, geometry.limits, strict=True)
    return tuple(dim < 0 and limit > 1 for dim, limit in dims)


def logical_coordinates(
    geometry: TransferGeometry, coordinates: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Convert physical to logical device coordinates; the first axis is the device dim."""
    table = logical_columns(geometry.arrangement)
    moved = coordinates.copy()
    if geometry.arrangement == "STANDARD":
        return moved
    if geometry.stick_axis < 0:
        moved[-1] = table[coordinates[-1]]
        return moved
    lanes = geometry.device_size[-1]
    column = coordinates[geometry.stick_axis] * lanes + coordinates[-1]
    group = column // table.size
    column = group * table.size + table[column % table.size]
    moved[geometry.stick_axis], moved[-1] = column // lanes, column % lanes
    return moved


def host_positions(
    geometry: TransferGeometry,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the host coordinates of every device position, and whether it has a host element.

    Shapes: (host dims, *device_size) and device_size. Coordinates of padding are undefined.
    """
    return _host_coordinates(geometry, np.indices(geometry.device_size, dtype=np.int64))


def _host_coordinates(
    geometry: TransferGeometry, physical: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Like `host_positions`, for physical device coordinates [dim, ...]."""
    device = logical_coordinates(geometry, physical)
    host = np.zeros((len(geometry.host_sizes), *device.shape[1:]), dtype=np.int64)
    valid = np.ones(device.shape[1:], dtype=np.bool_)
    for k, limit in enumerate(geometry.limits):
        valid &= device[k] < limit
    for host_dim, size in enumerate(geometry.host_sizes):
        walked = [k for k, h in enumerate(geometry.host_dims) if h == host_dim]
        finest_first = coarse_to_fine(geometry.multipliers, walked)[::-1]
        for k, coarser in zip_longest(finest_first, finest_first[1:]):
            host[host_dim] += geometry.multipliers[k] * device[k]
            valid &= host[host_dim] < (size if coarser is None else geometry.multipliers[coarser])
        valid &= size > 0
    return host, valid
