"""Values and operations of a device program, as data.

A value is a tensor in a launch argument or in scratch memory, or a view of one; a `DeviceOp` is one
operation over values, from which an SDSC is emitted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from math import prod

import msgspec
from msgspec.structs import replace

from spyre.dtypes import find_host_dtype
from spyre.errors import UnsupportedError
from spyre.layout import DeviceView
from spyre.mlir.operation import OVERFLOW_CONSTANT
from spyre.records import PartlyCompared


def float_bits(number: float) -> int:
    """The float32 bits of a number, as constants of operations are encoded."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int(bits)


def float_of(bits: int) -> float:
    """The number that `float_bits` encodes as ``bits``."""
    (number,) = struct.unpack("<f", struct.pack("<I", bits))
    return float(number)


Ints = tuple[int, ...]


class LoweringError(UnsupportedError):
    """Pitches cannot express the views of an operation: SPY930.

    The caller may try inputs in other layouts; otherwise the operation runs on the CPU.
    """

    def __init__(self, found: str) -> None:
        super().__init__(
            "SPY930",
            "the cores cannot walk these tensors together",
            expected="views whose dims go by pitches and agree about sticks",
            found=found,
            hint="contiguous copies of the operands may help",
        )


class UnevenDivision(LoweringError):
    """The given `CoreDivision` does not divide an operation evenly: SPY930."""


class Value(msgspec.Struct, frozen=True):
    """A tensor within a program.

    ``dtype``: torch dtype name. ``region``: number of its memory region; offsets in ``view`` count
    from the start of the region. ``order``: for fresh memory, the host dims in a layout's
    dim_order. ``padding_is_finite``: lanes beyond its elements are known to hold finite numbers.
    ``tile_pitches``: for the first tile of compiled loops over single elements of a dim, (number of
    the loop, 0 for the outermost; bytes to the tile of its next iteration).
    """

    view: DeviceView
    dtype: str
    region: int
    order: Ints | None = None
    padding_is_finite: bool = False
    tile_pitches: tuple[tuple[int, int], ...] = ()

    @property
    def sizes(self) -> Ints:
        """Host extents."""
        return self.view.sizes

    @property
    def numel(self) -> int:
        return prod(self.sizes)

    @property
    def lane_dim(self) -> int:
        """The host dim along the lanes, -1 if there is none."""
        return self.view.lane_dim

    @property
    def format(self) -> str:
        """Format of its elements on the card."""
        return self.view.device_format

    def permuted(self, order: Sequence[int]) -> Value:
        return self._with_view(self.view.permuted(order))

    def transposed(self, a: int, b: int) -> Value:
        """Dims ``a`` and ``b`` exchanged."""
        order = list(range(len(self.sizes)))
        order[a], order[b] = order[b], order[a]
        return self.permuted(order)

    def unsqueezed(self, dim: int) -> Value:
        """With an additional dim of size 1 before ``dim``."""
        return self._with_view(self.view.unsqueezed(dim))

    def expanded(self, sizes: Sequence[int]) -> Value:
        return self._with_view(self.view.expanded(sizes))

    def collapsed(self) -> Value:
        """With size 1 for dims that repeat one element."""
        dims = tuple(
            () if all(f.pitch_bytes == 0 and not f.lane for f in dim) else dim
            for dim in self.view.dims
        )
        return self if dims == self.view.dims else self._with_view(replace(self.view, dims=dims))

    def reshaped(self, sizes: Sequence[int]) -> Value:
        """The same elements with other sizes; LoweringError if pitches cannot express the view."""
        if tuple(sizes) == self.sizes:
            return self
        view = self.view.reshaped(sizes)
        if view is None:
            raise LoweringError(f"{self.sizes} as {tuple(sizes)}")
        return self._with_view(view)

    def _with_view(self, view: DeviceView) -> Value:
        return replace(self, view=view, order=None)


def device_format(dtype: str) -> str:
    """The device's format of a torch dtype name."""
    return find_host_dtype(dtype).device_format


def broadcast_sizes(sizes: Sequence[Sequence[int]]) -> Ints:
    """Broadcast sizes of operands that are known to be compatible."""
    rank = max(map(len, sizes), default=0)
    rows = [(1,) * (rank - len(s)) + tuple(s) for s in sizes]
    return tuple(next((n for n in column if n != 1), 1) for column in zip(*rows, strict=True))


def range_constants(name: str, dtype: str) -> dict[str, int]:
    """Constants that make an integer operation fault on int64 results beyond the card's int32."""
    makes_integers = name in ("addi32toi32", "muli32toi32", "fp32toint32")
    return {OVERFLOW_CONSTANT: 1} if makes_integers and dtype == "int64" else {}


def narrowed(value: Value, dim: int, start: int, length: int, step: int = 1) -> Value:
    """``length`` elements of ``dim`` from ``start`` on, every ``step``-th.

    Along lanes ``step`` must be 1, and ``start`` the start of a stick. LoweringError if pitches
    cannot express the view.
    """
    view = value.view
    if value.sizes[dim] == length:
        return value
    if len(view.dims[dim]) > 1 or (step > 1 and view.dims[dim][0].lane):
        raise LoweringError(f"{length} steps of {step} from {start} along {view.dims[dim]}")
    (factor,) = view.dims[dim]
    unit = view.elements_per_stick if factor.lane else 1
    if start % unit:
        raise LoweringError(f"{start} is within a stick")
    stepped = replace(factor, extent=length, pitch_bytes=factor.pitch_bytes * step)
    dims = (*view.dims[:dim], (stepped,) if length > 1 else (), *view.dims[dim + 1 :])
    offset = view.offset_bytes + start // unit * factor.pitch_bytes
    return replace(value, view=replace(view, dims=dims, offset_bytes=offset), order=None)


def selected(value: Value, dim: int, index: int) -> Value:
    """The elements at ``index`` along ``dim``, without that dim. LoweringError as of `narrowed`."""
    one = narrowed(value, dim, index, 1)
    dims = (*one.view.dims[:dim], *one.view.dims[dim + 1 :])
    return replace(one, view=replace(one.view, dims=dims), order=None)


def tile_of(value: Value, dim: int, is_backwards: bool = False) -> Value:
    """A tile of one element of ``dim``, without that dim, that advances by one per loop iteration.

    It starts at the first element, or at the last if ``is_backwards``. LoweringError if pitches
    cannot express the tile.
    """
    factors = value.view.dims[dim]
    if len(factors) > 1 or any(factor.lane for factor in factors):
        raise LoweringError(f"tiles of one element along {factors}")
    pitch = sum(factor.pitch_bytes for factor in factors)
    tile = selected(value, dim, value.sizes[dim] - 1 if is_backwards else 0)
    return replace(tile, tile_pitches=((0, -pitch if is_backwards else pitch),))


LoweringFunction = Callable[..., Value | Sequence[Value]]
"""(operations, *values, *parameters) → results: lowers one aten operation to the card's."""


class OpKind(StrEnum):
    """Kinds of operations by the order in which they walk their tensors."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    MATMUL = "matmul"
    RESTICKIFY = "restickify"
    TOPK = "topk"
    GATHER = "gather"


class DeviceOp(PartlyCompared, frozen=True):
    """One operation of the card, from which an SDSC is emitted.

    ``name``: opFuncName, for reductions without the suffix ``nonstick``. ``dims``: host dims that a
    reduction reduces, or the dim of a top-k or gather. ``mask_from``: lane elements of the first
    input from this index on count as 0. ``lane_multiple``: the lane dim is walked in multiples of
    this many elements, by default one stick. ``part``: (dim, start, length) of the output that it
    writes, by default all of it; along lanes it begins with a stick. ``made_for``: number of the
    kernel's operation that it is part of, -1 if not numbered.
    """

    uncompared = frozenset({"made_for"})

    kind: OpKind
    name: str
    inputs: tuple[Value, ...]
    output: Value
    dims: tuple[int, ...] = ()
    constants: Mapping[str, int] = msgspec.field(default_factory=dict)
    mask_from: int = 0
    lane_multiple: int = 0
    part: tuple[int, int, int] | None = None
    made_for: int = -1

    @property
    def written(self) -> Value:
        """The part of the output that it writes."""
        return self.output if self.part is None else narrowed(self.output, *self.part)

    def regions(self) -> tuple[int, ...]:
        """Regions it accesses, the output's last."""
        return (*(value.region for value in self.inputs), self.output.region)

    def into(self, region: int, target: Value) -> DeviceOp:
        """The operation with ``target`` in place of the value in ``region``."""
        if region not in self.regions():
            return self
        output = target if self.output.region == region else self.output
        inputs = tuple(target if v.region == region else v for v in self.inputs)
        return replace(self, inputs=inputs, output=output)

    def __str__(self) -> str:
        inputs = ", ".join(map(_text, self.inputs))
        over = f" over {list(self.dims)}" if self.dims else ""
        part = "" if self.part is None else str(list(self.part))
        return f"{_text(self.output)}{part} = {self.name}({inputs}){over}"


def _text(value: Value) -> str:
    return f"%{value.region}:{list(value.sizes)}@{value.dtype}"
