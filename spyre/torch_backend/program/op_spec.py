"""Values and operations of a device program, as data.

A value is a tensor in a launch argument or in scratch memory, or a view of one; an `OpSpec` is one
operation over values, before it is an SDSC.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import prod

from spyre.dtypes import find_host_dtype
from spyre.errors import UnsupportedError
from spyre.layout import DeviceView
from spyre.mlir.operation import OVERFLOW_CONSTANT


def float_bits(number: float) -> int:
    """A constant of an operation: its bits as float32."""
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int(bits)


def float_of(bits: int) -> float:
    """The number that `float_bits` of it are."""
    (number,) = struct.unpack("<f", struct.pack("<I", bits))
    return float(number)


Ints = tuple[int, ...]


class LoweringError(UnsupportedError):
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


class UnevenDivision(LoweringError):
    """The cores cannot share an operation in the way that was decided beforehand: SPY930."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor within a program.

    ``dtype``: torch dtype name. ``region``: number of the memory it lies in, from whose start
    ``view`` counts. ``order``: of fresh memory, the host dims as a layout's dim_order names them.
    ``padding_is_finite``: lanes beyond its elements are known to hold finite numbers.
    ``tile_pitches``: of the first tile of compiled loops that take one element of a dim at a time,
    (loop, the outermost being 0; bytes to the tile of its next iteration).
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
        """The host dim along the lanes; -1 where there is none."""
        return self.view.lane_dim

    @property
    def format(self) -> str:
        """Format of its elements on the card."""
        return self.view.device_format

    def permuted(self, order: Sequence[int]) -> Value:
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
        return self._seen(self.view.expanded(sizes))

    def collapsed(self) -> Value:
        """Dims that repeat one element as dims of size 1."""
        dims = tuple(
            () if all(f.pitch_bytes == 0 and not f.lane for f in dim) else dim
            for dim in self.view.dims
        )
        return self if dims == self.view.dims else self._seen(replace(self.view, dims=dims))

    def reshaped(self, sizes: Sequence[int]) -> Value:
        """The same elements under other sizes; LoweringError where pitches cannot say so."""
        if tuple(sizes) == self.sizes:
            return self
        view = self.view.reshaped(sizes)
        if view is None:
            raise LoweringError(f"{self.sizes} as {tuple(sizes)}")
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


def range_constants(name: str, dtype: str) -> dict[str, int]:
    """Constants of an integer operation: refused are results that int64 has, the card has not."""
    makes_integers = name in ("addi32toi32", "muli32toi32", "fp32toint32")
    return {OVERFLOW_CONSTANT: 1} if makes_integers and dtype == "int64" else {}


def narrowed(value: Value, dim: int, start: int, length: int, step: int = 1) -> Value:
    """``length`` elements of ``dim`` from ``start`` on, every ``step``-th; along lanes all of them,
    from the start of a stick.

    LoweringError where pitches cannot say so.
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
    """The elements at ``index`` along ``dim``, which is gone. LoweringError as of `narrowed`."""
    one = narrowed(value, dim, index, 1)
    dims = (*one.view.dims[:dim], *one.view.dims[dim + 1 :])
    return replace(one, view=replace(one.view, dims=dims), order=None)


def tile_of(value: Value, dim: int, is_backwards: bool = False) -> Value:
    """The elements at one place along ``dim``, which is gone: in the first iteration of the loop
    around the operation the first place, or the last one, and the next one each time.

    LoweringError where pitches cannot say so.
    """
    factors = value.view.dims[dim]
    if len(factors) > 1 or any(factor.lane for factor in factors):
        raise LoweringError(f"tiles of one element along {factors}")
    pitch = sum(factor.pitch_bytes for factor in factors)
    tile = selected(value, dim, value.sizes[dim] - 1 if is_backwards else 0)
    return replace(tile, tile_pitches=((0, -pitch if is_backwards else pitch),))


LoweringFunction = Callable[..., Value | Sequence[Value]]
"""(lowering, *values, *parameters) → results: one aten operation as operations of the card."""


class OpKind(StrEnum):
    """How an operation walks its tensors."""

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    MATMUL = "matmul"
    RESTICKIFY = "restickify"
    TOPK = "topk"
    GATHER = "gather"


@dataclass(frozen=True, slots=True)
class DeviceOp:
    """One SDSC to be.

    ``name``: opFuncName, of a reduction without the suffix ``nonstick``. ``dims``: host dims a
    reduction reduces, or the one a top-k or gather goes along. ``mask_from``: lane elements of the
    first input from there on count as 0. ``lane_multiple``: elements a lane dim is walked in,
    default one stick. ``part``: (dim, start, length) of the output that it writes, default all of
    it; along lanes it begins with a stick. ``made_for``: number of the operation among those of the
    kernel that it is a part of, -1 where nobody counts them.
    """

    kind: OpKind
    name: str
    inputs: tuple[Value, ...]
    output: Value
    dims: tuple[int, ...] = ()
    constants: Mapping[str, int] = field(default_factory=dict)
    mask_from: int = 0
    lane_multiple: int = 0
    part: tuple[int, int, int] | None = None
    made_for: int = field(default=-1, compare=False, repr=False)

    @property
    def written(self) -> Value:
        """What it writes of the output."""
        return self.output if self.part is None else narrowed(self.output, *self.part)

    def regions(self) -> tuple[int, ...]:
        """Regions it touches, the output's last."""
        return (*(value.region for value in self.inputs), self.output.region)

    def into(self, region: int, target: Value) -> DeviceOp:
        """The operation with the result that lies in ``region`` in ``target`` instead."""
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
