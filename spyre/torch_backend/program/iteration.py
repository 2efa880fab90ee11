"""The common iteration of several views: dims that one pitch per operand describes.

Host dims are cut where any operand's pitches change, and joined again where all of them allow it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spyre.layout import DeviceView, Factor, split
from spyre.torch_backend.program.op_spec import LoweringError


@dataclass(frozen=True, slots=True)
class IterationDim:
    """``factors``: per operand, all of ``extent`` elements. ``role``: dims join within one."""

    extent: int
    factors: tuple[Factor, ...]
    role: int = 0

    def holds(self, operand: int) -> bool:
        """True if the operand has elements of its own along the dim."""
        factor = self.factors[operand]
        return bool(factor.pitch_bytes) or factor.lane


def common_iteration(
    views: Sequence[DeviceView], roles: Sequence[int] | None = None
) -> list[IterationDim]:
    """Dims, outermost first, for views of equal sizes (broadcast ones have pitch 0).

    ``roles``: per host dim. Dims of size 1 are left out. LoweringError when a cut falls within
    the sticks of an operand.
    """
    dims: list[IterationDim] = []
    for k, extent in enumerate(views[0].sizes):
        if extent > 1:
            role = roles[k] if roles is not None else 0
            dims += cut(extent, [view.dims[k] for view in views], views, role)
    return _joined(dims)


def cut(
    extent: int,
    operands: Sequence[tuple[Factor, ...]],
    views: Sequence[DeviceView],
    role: int,
) -> list[IterationDim]:
    """One dim cut where the factors of any operand end; outermost first. LoweringError as of
    `common_iteration`.
    """
    cuts = {extent}
    for factors in operands:
        inner = 1
        for factor in reversed(factors):
            inner *= factor.extent
            cuts.add(inner)
    ordered = sorted(cuts)
    if any(b % a for a, b in itertools.pairwise(ordered)):
        raise LoweringError(f"factors {operands}")
    pieces = [ordered[0], *(b // a for a, b in itertools.pairwise(ordered))]
    columns = [
        _pieces(factors, pieces, view.elements_per_stick)
        for factors, view in zip(operands, views, strict=True)
    ]
    rows = zip(pieces, zip(*columns, strict=True), strict=True)
    return [IterationDim(n, factors, role) for n, factors in rows][::-1]


def _pieces(factors: Sequence[Factor], pieces: Sequence[int], lanes: int) -> list[Factor]:
    """``factors`` cut into ``pieces``, innermost first."""
    remaining = list(factors)
    columns: list[Factor] = []
    for size in pieces:
        last = remaining.pop()
        if last.extent != size:
            parts = split(last, size, lanes)
            if parts is None:
                raise LoweringError(f"{last} in steps of {size}")
            remaining.append(parts[0])
            last = parts[1]
        columns.append(last)
    return columns


def _joined(dims: list[IterationDim]) -> list[IterationDim]:
    """Dims with those joined that all operands walk as one."""
    dims = list(dims)
    for outer in range(len(dims) - 1, -1, -1):
        for inner in range(len(dims) - 1, -1, -1):
            if inner != outer and _join_fits(dims[outer], dims[inner]):
                dims[inner] = _join(dims[outer], dims[inner])
                del dims[outer]
                break
    return dims


def _join_fits(outer: IterationDim, inner: IterationDim) -> bool:
    if outer.role != inner.role:
        return False
    return all(
        not a.lane and not b.lane and a.pitch_bytes == b.pitch_bytes * inner.extent
        for a, b in zip(outer.factors, inner.factors, strict=True)
    )


def _join(outer: IterationDim, inner: IterationDim) -> IterationDim:
    extent = outer.extent * inner.extent
    factors = tuple(Factor(extent, factor.pitch_bytes) for factor in inner.factors)
    return IterationDim(extent, factors, inner.role)


@dataclass(frozen=True, slots=True)
class ScratchpadPlace:
    """A place in LX, the same on every core, which holds there what it takes part in: its slice of
    the tensor, packed. ``offset_bytes``: from the start of LX.
    """

    offset_bytes: int


@dataclass(frozen=True, slots=True)
class CoreDivision:
    """How cores share an operation's dims, where that is decided beforehand.

    ``splits``: slices by index of a dim. ``order``: dims whose slice index varies fastest from core
    to core come first; those left out follow.
    """

    splits: Mapping[int, int] = field(default_factory=dict)
    order: Sequence[int] = ()
