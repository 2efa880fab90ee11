"""The division of a collective's bytes into chunks and pieces, and the order of reductions.

IBM's order is not published. RankOrder is the default, because its result can be checked on one
card.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Literal, get_args

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.hw.device import Combiner
from spyre.runtime.comms.transport import Bytes

Algorithm = Literal["RankOrder", "Ring", "Tree", "Float32"]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
"""``RankOrder``: ((x0+x1)+x2)+…, every step rounded. ``Ring``: chunk c begins at rank c+1, as the
last rank of a ring has it. ``Tree``: pairs, then pairs of pairs. ``Float32``: 16-bit floats are
added in float32 and rounded once."""


def chunk_bounds(size_bytes: int, ranks: int) -> list[tuple[int, int]]:
    """Return the range of bytes that each rank reduces: whole sticks, divided evenly."""
    sticks = -(-size_bytes // STICK_BYTES)
    share = -(-sticks // ranks)
    edges = [min(sticks, rank * share) * STICK_BYTES for rank in range(ranks + 1)]
    return list(pairwise(edges))


def piece_sizes(size_bytes: int, piece_bytes: int) -> tuple[int, ...]:
    """Return the sizes of the pieces of a run."""
    whole, rest = divmod(size_bytes, piece_bytes)
    return (piece_bytes,) * whole + ((rest,) if rest else ())


def edges_of(sizes: Sequence[int], start: int = 0) -> list[int]:
    """Return the starts of consecutive runs of these sizes, and the end of the last one."""
    return [start, *(start + end for end in accumulate(sizes))]


def blocks_of(shape: tuple[int, int], piece_bytes: int) -> list[tuple[slice, slice]]:
    """Divide an array of bytes [rows, columns] into groups of rows or parts of single rows."""
    rows, columns = shape
    if rows * columns == 0:
        return []
    if columns >= piece_bytes:
        starts = range(0, columns, piece_bytes)
        return [
            (slice(row, row + 1), slice(at, min(at + piece_bytes, columns)))
            for row in range(rows)
            for at in starts
        ]
    group = max(1, piece_bytes // columns)
    return [
        (slice(row, min(row + group, rows)), slice(0, columns)) for row in range(0, rows, group)
    ]


def block_bytes(blocks: Sequence[tuple[slice, slice]]) -> tuple[int, ...]:
    """Return the bytes of each block."""
    return tuple((r.stop - r.start) * (c.stop - c.start) for r, c in blocks)


def fold(runs: Sequence[Bytes], owner: int, algorithm: str, combiner: Combiner, out: Bytes) -> None:
    """Reduce runs of whole sticks, one per rank, into ``out``, which may be one of them.

    ``owner``: the rank that reduces this chunk; the order of a ring depends on it.
    """
    if len(runs) == 1:
        out[:] = runs[0]
    elif algorithm == "Tree":
        _fold_pairs(list(runs), combiner, out)
    elif algorithm == "Float32" and combiner.operator == "sum" and combiner.is_float:
        combiner.add_once(runs, out)
    else:
        first = owner + 1 if algorithm == "Ring" else 0
        order = [runs[(first + step) % len(runs)] for step in range(len(runs))]
        _fold_in_order(order, combiner, out)


def _fold_in_order(order: Sequence[Bytes], combiner: Combiner, out: Bytes) -> None:
    is_read_late = any(np.may_share_memory(run, out) for run in order[2:])
    total = np.empty_like(out) if is_read_late else out
    combiner.combine(order[0], order[1], total)
    for run in order[2:-1]:
        combiner.combine(total, run, total)
    if len(order) > 2:
        combiner.combine(total, order[-1], out)


def _fold_pairs(level: list[Bytes], combiner: Combiner, out: Bytes) -> None:
    while len(level) > 2:
        joined = []
        for left, right in zip(level[::2], level[1::2], strict=False):
            target = np.empty_like(out)
            combiner.combine(left, right, target)
            joined.append(target)
        level = joined + ([level[-1]] if len(level) % 2 else [])
    combiner.combine(level[0], level[1], out)
