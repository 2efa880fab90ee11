"""What each core touches of an operand, as bytes from a common origin, for bounds checks.

Windows without stored padding reach back before a core's own start (operations reference §7), all
other operands only forward. Lengths and addresses are bytes.
"""

from __future__ import annotations

import numpy as np

from spyre.hw.access import Access, per_core
from spyre.hw.nest import Int64Array
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.footprint import (
    implied_front,
    indexed_dims,
    is_local,
    unsplit_input_extent,
    window_of,
    window_span,
)
from spyre.mlir.operation import Operation


def touched_bytes(op: Operation, access: Access, starts: Int64Array) -> tuple[int, int]:
    """First byte and end of what all cores touch; ``starts``: a start per core.

    A core's share of an index tensor may start inside a stick, at whose end it ends. Where memory
    is shorter than the iteration (ReStickifyOpHBM), the last cores touch less than their share.
    Along the dims an index stands for, one step counts, whatever memory holds.
    """
    windowed = [d for d in access.tensor.dims if window_of(op, access.tensor, d) is not None]
    short = [d for d in _divided(op, access) if access.stored[d] < op.extents[d]]
    if not windowed and not short:
        inside = starts % STICK_BYTES if access.tensor in op.index_tensors else 0
        return int(starts.min()), int((starts - inside).max()) + access.span_bytes
    low, high = starts.copy(), starts + STICK_BYTES
    reached = np.ones(len(starts), np.bool_)
    for dim in access.tensor.dims:
        if not access.tensor.holds(dim) or dim in indexed_dims(op, access.tensor):
            continue
        size, pitch = access.sticks.get(dim, 1), access.pitch_bytes[dim]
        if dim in windowed:
            first, end = _window_range(op, access, dim)
        else:
            first, end = np.zeros(1, np.int64), _stored_share(op, access, dim, dim in short)
            reached &= end > 0
        low += first // size * pitch
        high += (np.maximum(-(-end // size), 1) - 1) * pitch
    if not reached.any():
        return int(starts.min()), int(starts.min())
    return int(low[reached].min()), int(high[reached].max())


def _divided(op: Operation, access: Access) -> list[str]:
    """Dims along which the cores have slices of one tensor in HBM; no core has one of a table."""
    if is_local(access.tensor):
        return []
    indexed = indexed_dims(op, access.tensor)
    held = [d for d in access.tensor.dims if access.tensor.holds(d) and d not in indexed]
    return [d for d in held if op.slices.get(d, 1) > 1]


def _stored_share(op: Operation, access: Access, dim: str, is_short: bool) -> Int64Array:
    """Elements of ``dim`` that each core has in memory."""
    share = np.full(len(op.core_slices), per_core(op, dim), np.int64)
    if not is_short:
        return np.minimum(share, access.stored[dim])
    origins = np.array([core.get(dim, 0) for core in op.core_slices], np.int64) * share
    found: Int64Array = np.clip(access.stored[dim] - origins, 0, share)
    return found


def _window_range(op: Operation, access: Access, dim: str) -> tuple[Int64Array, Int64Array]:
    """Per core: stored coordinates along a windowed ``dim``, counted from the core's start."""
    window = op.windows[dim]
    origins = [core.get(dim, 0) * per_core(op, dim) * window.stride for core in op.core_slices]
    origin = np.array(origins, np.int64)
    front = implied_front(access.tensor, dim, window)
    limit = unsplit_input_extent(access.tensor, dim, window)
    end = np.minimum(window_span(op, dim, window) - front, limit - origin)
    return np.maximum(-front, -origin), end
