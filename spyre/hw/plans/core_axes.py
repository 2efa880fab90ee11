"""Cores as axes of the walk over operands.

Because the start addresses of the cores are affine in their work-slice indices, cores become
ordinary axes; kernels then know nothing of cores, and threads split blocks instead. Where starts
are not affine, the cores are split into groups that are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spyre.errors import DeviceLocation, UnsupportedError
from spyre.layout import AccessMap, Axis, Int64Array
from spyre.mlir.operation import Operation


@dataclass(frozen=True, slots=True)
class CoreGroup:
    """Cores whose starts are affine: start of the first per operand, and an axis per split dim."""

    first: tuple[int, ...]
    axes: dict[str, Axis]

    def walk(self, axes: Sequence[Axis], operand: int) -> AccessMap:
        """What the cores walk together, as ``operand`` (usually the output) lies."""
        return AccessMap(self.first, (*self.axes.values(), *axes)).canonical(operand)


def fold_cores(
    op: Operation, starts: Int64Array, whole_dims: Sequence[str] = ()
) -> list[CoreGroup]:
    """Turn cores into axes. ``starts``: bytes, [operand, core], in the order of ``op.cores``.

    Dims of ``whole_dims`` (those being reduced) may not be torn apart into several groups; raises
    UnsupportedError if only that would make the starts affine.
    """
    slices = _slice_indices(op)
    groups: list[CoreGroup] = []
    for cores in _passes(slices, starts.shape[1], bool(whole_dims)):
        picked = {dim: index[cores] for dim, index in slices.items()}
        groups += _groups(op, picked, starts[:, cores], set(whole_dims))
    return groups


def _passes(slices: dict[str, Int64Array], cores: int, together: bool) -> Iterator[Int64Array]:
    """Positions of cores, every work slice at most once per pass: replicas repeat the work.

    Cores that reduce ``together`` are never parted.
    """
    slices_of_cores = list(zip(*(index.tolist() for index in slices.values()), strict=True))
    if together or len(set(slices_of_cores)) == cores:
        yield np.arange(cores)
        return
    seen: Counter[tuple[int, ...]] = Counter()
    turns = np.zeros(cores, np.int64)
    for core, slices_of_core in enumerate(slices_of_cores or [()] * cores):
        turns[core] = seen[slices_of_core]
        seen[slices_of_core] += 1
    for turn in range(int(turns.max(initial=0)) + 1):
        yield np.flatnonzero(turns == turn)


def _slice_indices(op: Operation) -> dict[str, Int64Array]:
    split = [dim for dim in op.dims if op.slices.get(dim, 1) > 1]
    return {
        dim: np.fromiter((core.get(dim, 0) for core in op.core_slices), np.int64) for dim in split
    }


def _groups(
    op: Operation, slices: dict[str, Int64Array], starts: Int64Array, whole: set[str]
) -> Iterator[CoreGroup]:
    group = _affine_group(slices, starts)
    if group is not None:
        yield group
        return
    for dim in slices:
        values = np.unique(slices[dim])
        if dim in whole or values.size < 2:
            continue
        for value in values:
            cores = slices[dim] == value
            remaining = {name: index[cores] for name, index in slices.items()}
            yield from _groups(op, remaining, starts[:, cores], whole)
        return
    raise UnsupportedError(
        "SPY523",
        f"{op.name}: start addresses of cores that reduce together are not regular",
        DeviceLocation(op.file),
        expected="starts affine in the work-slice index of the reduced dim",
        found=f"slices {dict(op.slices)} over cores {list(op.cores)}",
    )


def _affine_group(slices: dict[str, Int64Array], starts: Int64Array) -> CoreGroup | None:
    """The cores as one group, or None if they are no full grid or their starts not affine."""
    cores = starts.shape[1]
    if cores == 1:
        return CoreGroup(tuple(starts[:, 0].tolist()), {})
    counts = {dim: int(index.max() - index.min()) + 1 for dim, index in slices.items()}
    number = np.zeros(cores, np.int64)
    weights: dict[str, int] = {}
    total = 1
    for dim, count in counts.items():
        weights[dim] = total
        number += (slices[dim] - slices[dim].min()) * total
        total *= count
    if total != cores:
        return None
    core_at = np.full(cores, -1, np.int64)
    core_at[number] = np.arange(cores)
    if (core_at < 0).any():
        return None
    base = starts[:, core_at[0]]
    expected = np.repeat(base[:, None], cores, axis=1)
    axes: dict[str, Axis] = {}
    for dim, count in counts.items():
        if count == 1:
            continue
        delta = starts[:, core_at[weights[dim]]] - base
        expected += delta[:, None] * (slices[dim] - slices[dim].min())
        axes[dim] = Axis(count, tuple(delta.tolist()))
    if not np.array_equal(expected, starts):
        return None
    return CoreGroup(tuple(base.tolist()), axes)
