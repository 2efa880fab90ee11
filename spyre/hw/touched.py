"""What each core touches of an operand, as bytes from a common origin, for bounds checks.

Windows without stored padding reach back before a core's own start (operations reference §7), all
other operands only forward. Lengths and addresses are bytes.
"""

from __future__ import annotations

import numpy as np

from spyre.hw.access import Access, per_core
from spyre.hw.nest import Int64Array
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.footprint import implied_front, unsplit_input_extent, window_of, window_span
from spyre.mlir.operation import Operation


def touched_bytes(op: Operation, access: Access, starts: Int64Array) -> tuple[int, int]:
    """First byte and end of what all cores touch; ``starts``: a start per core.

    A core's share of an index tensor may start inside a stick, at whose end it ends.
    """
    windowed = [d for d in access.tensor.dims if window_of(op, access.tensor, d) is not None]
    if not windowed:
        inside = starts % STICK_BYTES if access.tensor in op.index_tensors else 0
        return int(starts.min()), int((starts - inside).max()) + access.span_bytes
    low, high = starts.copy(), starts + STICK_BYTES
    for dim in access.tensor.dims:
        if not access.tensor.holds(dim):
            continue
        size, pitch = access.sticks.get(dim, 1), access.pitch_bytes[dim]
        first, end = _window_range(op, access, dim) if dim in windowed else (0, per_core(op, dim))
        low += np.asarray(first) // size * pitch
        high += (np.maximum(-(-np.asarray(end) // size), 1) - 1) * pitch
    return int(low.min()), int(high.max())


def _window_range(op: Operation, access: Access, dim: str) -> tuple[Int64Array, Int64Array]:
    """Per core: stored coordinates along a windowed ``dim``, counted from the core's start."""
    window = op.windows[dim]
    origins = [core.get(dim, 0) * per_core(op, dim) * window.stride for core in op.core_slices]
    origin = np.array(origins, np.int64)
    front = implied_front(access.tensor, dim, window)
    limit = unsplit_input_extent(access.tensor, dim, window)
    end = np.minimum(window_span(op, dim, window) - front, limit - origin)
    return np.maximum(-front, -origin), end
