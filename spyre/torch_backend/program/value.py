"""Values of a device program: tensors in launch arguments, in scratch memory, and views of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from spyre.dtypes import find_host_dtype
from spyre.errors import UnsupportedError
from spyre.layout.device_view import DeviceView

Ints = tuple[int, ...]


class NotExpressible(UnsupportedError):
    """Pitches cannot say what a program needs of its tensors: SPY930.

    Inputs in other layouts may help; where nothing does, the operation runs on the CPU.
    """

    def __init__(self, found: str) -> None:
        super().__init__(
            "SPY930",
            "the cores cannot walk these tensors together",
            expected="views whose dims go by pitches and agree about sticks",
            found=found,
            hint="contiguous copies of the operands may help",
        )


class NotDivisible(NotExpressible):
    """The cores cannot share an operation in the way that was decided beforehand: SPY930."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor within a program.

    ``dtype``: torch dtype name. ``region``: number of the memory it lies in, from whose start
    ``view`` counts. ``order``: of fresh memory, the host dims as a layout's dim_order names them.
    ``clean``: lanes beyond its elements are known to hold finite numbers. ``tile_pitches``: of the
    first tile of compiled loops that take one element of a dim at a time, (loop, the outermost
    being 0; bytes to the tile of its next iteration).
    """

    view: DeviceView
    dtype: str
    region: int
    order: Ints | None = None
    clean: bool = False
    tile_pitches: tuple[tuple[int, int], ...] = ()

    @property
    def sizes(self) -> Ints:
        """Host extents."""
        return self.view.sizes

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.sizes)

    @property
    def lane_dim(self) -> int:
        """The host dim along the lanes; -1 where there is none."""
        return self.view.lane_dim

    @property
    def format(self) -> str:
        """Format of its elements on the card."""
        return self.view.device_format

    def permuted(self, order: Sequence[int]) -> Value:
        """Dims in ``order``."""
        return self._seen(self.view.permuted(order))

    def transposed(self, a: int, b: int) -> Value:
        """Dims ``a`` and ``b`` exchanged."""
        order = list(range(len(self.sizes)))
        order[a], order[b] = order[b], order[a]
        return self.permuted(order)

    def unsqueezed(self, dim: int) -> Value:
        """A dim of size 1 more, in front of ``dim``."""
        return self._seen(self.view.unsqueezed(dim))

    def expanded(self, sizes: Sequence[int]) -> Value:
        """Broadcast to ``sizes``."""
        return self._seen(self.view.expanded(sizes))

    def collapsed(self) -> Value:
        """Dims that repeat one element as dims of size 1."""
        dims = tuple(
            () if all(f.pitch_bytes == 0 and not f.lane for f in dim) else dim
            for dim in self.view.dims
        )
        return self if dims == self.view.dims else self._seen(replace(self.view, dims=dims))

    def reshaped(self, sizes: Sequence[int]) -> Value:
        """The same elements under other sizes; NotExpressible where pitches cannot say so."""
        if tuple(sizes) == self.sizes:
            return self
        view = self.view.reshaped(sizes)
        if view is None:
            raise NotExpressible(f"{self.sizes} as {tuple(sizes)}")
        return self._seen(view)

    def _seen(self, view: DeviceView) -> Value:
        return replace(self, view=view, order=None)


def device_format(dtype: str) -> str:
    """The device's format of a torch dtype name."""
    return find_host_dtype(dtype).device_format


def broadcast_sizes(sizes: Sequence[Sequence[int]]) -> Ints:
    """Sizes of a result over operands of these sizes; they are known to go together."""
    rank = max(map(len, sizes), default=0)
    rows = [(1,) * (rank - len(s)) + tuple(s) for s in sizes]
    return tuple(_broadcast(column) for column in zip(*rows, strict=True))


def _broadcast(column: Sequence[int]) -> int:
    return next((n for n in column if n != 1), 1)


def narrowed(value: Value, dim: int, start: int, length: int) -> Value:
    """``length`` steps of ``dim`` from ``start`` on; along lanes from the start of a stick.

    NotExpressible where pitches cannot say so.
    """
    view = value.view
    if value.sizes[dim] == length:
        return value
    if len(view.dims[dim]) > 1:
        raise NotExpressible(f"{length} steps from {start} along {view.dims[dim]}")
    (factor,) = view.dims[dim]
    unit = view.elements_per_stick if factor.lane else 1
    if start % unit:
        raise NotExpressible(f"{start} is within a stick")
    taken = (replace(factor, extent=length),) if length > 1 else ()
    dims = (*view.dims[:dim], taken, *view.dims[dim + 1 :])
    offset = view.offset_bytes + start // unit * factor.pitch_bytes
    return replace(value, view=replace(view, dims=dims, offset_bytes=offset), order=None)
