"""Host ↔ device copies: descriptors of loop nests, executed by compiled kernels.

The way of a copy: layout and host strides → `DataConversionInfo` (:mod:`spyre.layout.conversion`)
→ transfer table (:mod:`spyre.hw.transfer_plan`, kept) → kernel. Padding is zero-filled on the way
in and skipped on the way out. The slow twin is :mod:`spyre.layout.reference`. Copies to different
memory may run in several threads at once. Rules: runtime reference §3, SDSC reference §6.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.errors import LaunchError
from spyre.hw.numerics import Numerics
from spyre.hw.pool_block import CHUNKS_PER_THREAD
from spyre.hw.threads import ThreadPool
from spyre.hw.transfer_plan import TransferPlan, plan_transfer
from spyre.layout import DataConversionInfo, SpyreTensorLayout

_PARALLEL_BYTES = 1 << 19


@dataclass(frozen=True, slots=True)
class HostView:
    """A host tensor to copy: 1-D storage, first element, strides of the layout's host dims.

    ``dtype``: torch dtype name. ``sizes``/``layout_strides``: the extents and strides the layout
    was made for; ``strides``: those of this storage. All in elements.
    """

    storage: npt.NDArray[Any]
    dtype: str
    sizes: tuple[int, ...]
    layout_strides: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def __post_init__(self) -> None:
        ranks = {len(self.sizes), len(self.layout_strides), len(self.strides)}
        if len(ranks) > 1:
            raise LaunchError(
                "SPY322",
                "sizes and strides of a host tensor differ in rank",
                expected=f"{len(self.sizes)} strides for sizes {list(self.sizes)}",
                found=f"strides {list(self.strides)} and {list(self.layout_strides)}",
            )

    @classmethod
    def dense(
        cls,
        storage: npt.NDArray[Any],
        dtype: str,
        sizes: Sequence[int],
        strides: Sequence[int],
    ) -> HostView:
        """A storage that is laid out exactly as the device layout assumes."""
        return cls(storage, dtype, tuple(sizes), tuple(strides), tuple(strides))


def copy_to_device(
    host: HostView,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
    numerics: Numerics,
    pool: ThreadPool,
) -> DataConversionInfo:
    """Fill ``device`` (the tensor's bytes) from ``host``; padding becomes zero.

    Returns what was executed, host elements counted from the first of the tensor. LaunchError
    SPY324 when one side is too small; other errors as in `plan_transfer`.
    """
    return _copy(host, layout, device, numerics, pool, True)


def copy_to_host(
    host: HostView,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
    numerics: Numerics,
    pool: ThreadPool,
) -> DataConversionInfo:
    """Write the tensor's elements from ``device`` into ``host.storage``; as `copy_to_device`."""
    return _copy(host, layout, device, numerics, pool, False)


def _copy(
    host: HostView,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
    numerics: Numerics,
    pool: ThreadPool,
    to_device: bool,
) -> DataConversionInfo:
    strides = (host.sizes, host.layout_strides, host.strides)
    plan = plan_transfer(layout, *strides, host.dtype, numerics, to_device)
    if plan.units:
        _check_bounds(host, plan, layout, device)
        first = host.offset + plan.lowest
        start = host.storage.ctypes.data + first * host.storage.itemsize
        _run(plan, start, device.ctypes.data, pool)
    return plan.info


def _run(plan: TransferPlan, host: int, device: int, pool: ThreadPool) -> None:
    from spyre.hw.kernels.pool import run_job
    from spyre.hw.kernels.transfer import run, run_transfer

    if pool.threads == 1 or plan.units < 2 or plan.size_bytes < _PARALLEL_BYTES:
        run_transfer(run.address, plan.address, host, device, 0, plan.units)
        return
    pool.prepare()
    chunks = min(plan.units, pool.threads * CHUNKS_PER_THREAD)
    run_job(pool.block, 0, run.address, plan.address, host, device, plan.units, chunks)


def _check_bounds(
    host: HostView,
    plan: TransferPlan,
    layout: SpyreTensorLayout,
    device: npt.NDArray[np.uint8],
) -> None:
    first, last = host.offset + plan.lowest, host.offset + plan.highest
    if plan.info.nests and not (0 <= first <= last < host.storage.size):
        raise LaunchError(
            "SPY324",
            "host storage is too small for the tensor",
            expected=f"elements {first} to {last}",
            found=f"{host.storage.size} elements",
        )
    if device.size < plan.size_bytes:
        raise LaunchError(
            "SPY324",
            "device bytes do not match the tensor layout",
            expected=f"{plan.size_bytes} bytes for {layout}",
            found=f"{device.size} bytes",
        )
