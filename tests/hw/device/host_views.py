"""Copies of host tensors whose extents differ from those that the device layout was made for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.hw.device.threads import ThreadPool
from spyre.hw.device.transfer import execute_transfer, plan_transfer
from spyre.hw.numerics import Numerics
from spyre.layout import DataConversionInfo, SpyreTensorLayout


class HostView(msgspec.Struct, frozen=True):
    """A 1-D storage, and the arguments of `plan_transfer`; all extents in elements."""

    storage: npt.NDArray[Any]
    dtype: str
    sizes: tuple[int, ...]
    layout_strides: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def dense(
        cls, storage: npt.NDArray[Any], dtype: str, sizes: Sequence[int], strides: Sequence[int]
    ) -> HostView:
        return cls(storage, dtype, tuple(sizes), tuple(strides), tuple(strides))


def copy_to_device(
    host: HostView,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
    numerics: Numerics,
    pool: ThreadPool,
) -> DataConversionInfo:
    return _copy(host, layout, device, numerics, pool, True)


def copy_to_host(
    host: HostView,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
    numerics: Numerics,
    pool: ThreadPool,
) -> DataConversionInfo:
    return _copy(host, layout, device, numerics, pool, False)


def _copy(
    host: HostView,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
    numerics: Numerics,
    pool: ThreadPool,
    to_device: bool,
) -> DataConversionInfo:
    extents = (layout, host.sizes, host.layout_strides, host.strides)
    plan = plan_transfer(*extents, host.dtype, numerics, to_device)
    return execute_transfer(plan, host.storage, host.offset, device, pool)
