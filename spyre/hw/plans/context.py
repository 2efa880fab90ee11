"""What every planner starts from, how a table row is written, and masked coordinates.

A planner gets a :class:`PlanContext` (operation, op-table row, operand accesses, start addresses)
and yields int64 rows of :mod:`spyre.hw.table.plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from spyre.errors import DeviceLocation, JsonLocation, SdscError, UnsupportedError
from spyre.hw.access import TensorAccess, per_core
from spyre.hw.ops import OpDefinition, decode_constant
from spyre.hw.plans.core_axes import CoreGroup
from spyre.hw.table import plan as tb
from spyre.layout import AccessMap, Axis, Int64Array
from spyre.mlir.operation import MASK_CONSTANT, Operation, Tensor

_PACKED_FORMATS = {
    "SEN143_FP8": tb.FP8_143,
    "SEN152_FP8": tb.FP8_152,
    "SENINT8": tb.INT8,
    "SENINT4": tb.INT4,
    "IEEE_INT32": tb.INT32,
}


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Input of a planner.

    ``accesses``: inputs, index tensors, outputs, in this order, which is also the order of rows
    in ``starts`` (bytes, [operand, core], relative to the first core's start of that operand).
    ``arrangements``: element arrangement per operand (STANDARD where unknown). ``half_format``:
    table code of 16-bit floats in this device's numerics. ``chunked``: sums of 16-bit floats
    accumulate in DL16.
    """

    op: Operation
    spec: OpDefinition
    accesses: tuple[TensorAccess, ...]
    starts: Int64Array
    arrangements: tuple[str, ...]
    half_format: int
    threads: int
    chunked: bool = False

    @property
    def inputs(self) -> tuple[TensorAccess, ...]:
        """Accesses of the inputs."""
        return self.accesses[: len(self.op.inputs)]

    @property
    def output(self) -> TensorAccess:
        """Access of the one output."""
        return self.accesses[-1]

    @property
    def location(self) -> DeviceLocation:
        """The SDSC, for messages."""
        return DeviceLocation(self.op.file)

    def format_code(self, tensor: Tensor) -> int:
        """FORMAT word of ``tensor``; raises UnsupportedError for formats kernels do not read."""
        if tensor.data_format == "SEN169_FP16":
            return self.half_format
        if tensor.data_format == "IEEE_FP32":
            return tb.FP32
        raise UnsupportedError(
            "SPY522",
            f"{self.op.name}: arithmetic on {tensor.data_format} is not simulated yet",
            JsonLocation(self.op.file, tensor.json_path),
            expected="SEN169_FP16 or IEEE_FP32",
            found=tensor.data_format,
        )

    def any_format_code(self, tensor: Tensor) -> int:
        """FORMAT word of ``tensor``, packed formats and integers included; SPY522 as above."""
        code = _PACKED_FORMATS.get(tensor.data_format)
        return self.format_code(tensor) if code is None else code

    def constant(self, name: str) -> float:
        """Value of the SDSC's constant ``name``; raises SdscError when it is missing."""
        if name not in self.op.constants:
            raise SdscError(
                "SPY281",
                f"{self.op.name} needs the constant {name!r}",
                JsonLocation(self.op.file, "$.dscs_[0].constantInfo_"),
                expected=name,
                found=", ".join(self.op.constants) or "no constants",
            )
        return decode_constant(self.op.constants[name], self.op.constant_formats[name])

    def is_set(self, name: str) -> bool:
        """True if the operation has the optional constant ``name`` and any bit of it is set."""
        known = name in self.spec.optional_constants
        return known and self.op.constants.get(name, 0) != 0

    def refuse(
        self, code: str, message: str, expected: str, found: str, path: str = ""
    ) -> UnsupportedError:
        """An UnsupportedError that names the operation, its file, and the JSON path in it."""
        location = JsonLocation(self.op.file, path) if path else self.location
        return UnsupportedError(
            code, f"{self.op.name}: {message}", location, expected=expected, found=found
        )


def refuse_chunks(context: PlanContext) -> None:
    """Raise UnsupportedError in the number mode dl16-chunk: these sums add up in float32 only."""
    if context.chunked:
        raise context.refuse(
            "SPY542",
            "sums in DL16 chunks are not simulated for this operation",
            "numerics dl16 or ieee",
            "dl16-chunk",
            "$.dscs_[0].computeOp_[0].opFuncName",
        )


def check_covered(context: PlanContext, inner: TensorAccess, outer: TensorAccess) -> None:
    """Raise SdscError if ``inner`` varies along a dim that ``outer`` lacks.

    An input's dims must be in the output of an elementwise operation, an output's dims in the
    input of a reduction (operations reference §2); anything else has no defined result.
    """
    lacking = [d for d in context.op.dims if inner.tensor.holds(d) and not outer.tensor.holds(d)]
    if lacking:
        raise SdscError(
            "SPY287",
            f"{context.op.name}: {outer.tensor.name} lacks a dim of {inner.tensor.name}",
            context.location,
            expected=f"{outer.tensor.name} over {', '.join(lacking)} too",
            found=f"{outer.tensor.name} over "
            f"{', '.join(d for d in context.op.dims if outer.tensor.holds(d)) or 'no dim'}",
        )


def check_shared_output(
    context: PlanContext, group: CoreGroup, reduced: Sequence[str], output: int
) -> None:
    """Raise UnsupportedError if cores that reduce together write to different places."""
    for dim in reduced:
        distance = group.axes[dim].pitches[output] if dim in group.axes else 0
        if distance:
            raise context.refuse(
                "SPY523",
                "cores that reduce together write to different places",
                f"one output address for all work slices of {dim!r}",
                f"addresses {distance} bytes apart",
            )


def float_word(value: float) -> int:
    """The bits of ``value`` as binary32 (infinite beyond its range), for a table word."""
    with np.errstate(over="ignore"):
        return int(np.float32(value).view(np.int32))


def walk_axes(
    context: PlanContext, sticks: Mapping[str, int], dims: Sequence[str] | None = None
) -> list[Axis]:
    """One axis per dim (of ``dims``): whole sticks of so many elements along the dims of
    ``sticks``, single elements along the others.
    """
    axes = []
    for dim in context.op.dims if dims is None else dims:
        extent, step = per_core(context.op, dim), sticks.get(dim, 1)
        if dim in sticks:
            extent = whole_steps(context, dim, extent, step)
        axes.append(Axis(extent, tuple(a.step_bytes(dim, step) for a in context.accesses)))
    return axes


def whole_steps(context: PlanContext, dim: str, extent: int, step: int) -> int:
    """extent / step; a stick dim that all operands lack is one stick whatever its extent."""
    if not any(a.tensor.holds(dim) for a in context.accesses):
        return 1
    if extent % step:
        raise SdscError(
            "SPY282",
            f"{context.op.name}: one core's share of stick dim {dim!r} is not whole sticks",
            JsonLocation(context.op.file, "$.numWkSlicesPerDim_"),
            expected=f"a multiple of {step} elements",
            found=f"{extent} elements",
        )
    return extent // step


class RowWriter:
    """Fills one row of the plan table."""

    def __init__(self, kind: int) -> None:
        self.words = np.zeros(tb.WORDS, np.int64)
        self.words[tb.KIND] = kind

    def header(self, **words: int) -> None:
        """Set header words by their lower-case names in :mod:`spyre.hw.table.plan`."""
        for name, value in words.items():
            self.words[getattr(tb, name.upper())] = value

    def operand(self, slot: int, tensor: int, base: int, lane: int = -1, code: int = 0) -> None:
        """Describe operand ``slot``: its tensor's position in the dispatch bases (-1: none)."""
        word = tb.OPERAND + slot * tb.OPERAND_WORDS
        self.words[word + tb.BASE] = base
        self.words[word + tb.TENSOR] = tensor
        self.words[word + tb.LANE] = lane
        self.words[word + tb.FORMAT] = code

    def walk(self, walk: AccessMap) -> None:
        """Set RANK, EXTENT, INNER and the pitches of all operands; the last axis is innermost."""
        *outer, inner = walk.axes
        self.words[tb.RANK] = len(outer)
        self.words[tb.INNER] = inner.extent
        self.words[tb.OPERANDS] = len(walk.first)
        for number, axis in enumerate(outer):
            self.words[tb.EXTENT + number] = axis.extent
        for k in range(len(walk.first)):
            word = tb.OPERAND + k * tb.OPERAND_WORDS
            for number, axis in enumerate(outer):
                self.words[word + tb.PITCH + number] = axis.pitches[k]
            self.words[word + tb.INNER_PITCH] = inner.pitches[k]

    def constants(self, values: Sequence[float]) -> None:
        """Store float32 constants, packed two to a word."""
        area = self.words[tb.CONSTANT : tb.CONSTANT + tb.MAX_CONSTANTS].view(np.float32)
        area[: len(values)] = np.array(values, np.float32)


def outer_count(walk: AccessMap) -> int:
    """Steps of all axes but the innermost."""
    return prod(axis.extent for axis in walk.axes[:-1])


@dataclass(frozen=True, slots=True)
class Mask:
    """One masked interval [start, end) of ``dim``; ``lanes`` if ``dim`` is the stick dim."""

    dim: str
    start: int
    end: int
    value: float
    lanes: bool

    def starts(self, context: PlanContext) -> Int64Array:
        """Coordinate of each core's first element along the masked dim."""
        share = per_core(context.op, self.dim)
        slices = [core.get(self.dim, 0) * share for core in context.op.core_slices]
        return np.array(slices, np.int64)

    def pitch(self, dim: str, elements: int) -> int:
        """Coordinate advance of ``elements`` steps along ``dim``."""
        return elements if dim == self.dim else 0

    def write(self, row: RowWriter) -> None:
        """Set the mask words of ``row``."""
        row.header(
            mask=tb.MASK_LANES if self.lanes else tb.MASK_STICKS,
            mask_start=self.start,
            mask_end=self.end,
            mask_bits=float_word(self.value),
        )


def find_mask(context: PlanContext) -> Mask | None:
    """The operation's mask, if any; raises UnsupportedError for more than one interval."""
    masks = {dim: spans for dim, spans in context.op.masks.items() if spans}
    if not masks:
        return None
    intervals = [(dim, start, count) for dim, spans in masks.items() for start, count in spans]
    if len(intervals) > 1:
        raise context.refuse(
            "SPY524", "several masked intervals", "one interval of one dim", str(intervals)
        )
    dim, start, count = intervals[0]
    value = context.constant(MASK_CONSTANT)
    return Mask(dim, start, start + count, value, dim == context.inputs[0].stick_dim)
