"""The input of planners, the writer of table rows, masked coordinates, and cores as axes.

A planner gets a :class:`PlanContext` (operation, op-table row, operand accesses, start addresses)
and yields int64 rows of :mod:`spyre.hw.plan_table`.

Because the start addresses of the cores are affine in their work-slice indices, cores become
ordinary axes of the walk over operands; kernels then do not depend on cores, and threads split
blocks instead. If starts are not affine, the cores are split into groups whose starts are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod

import msgspec
import numpy as np

from spyre.dtypes import FORMATS, NO_CODE
from spyre.errors import DeviceLocation, JsonLocation, SdscError, UnsupportedError
from spyre.hw import plan_table as tb
from spyre.hw.access import TensorAccess
from spyre.hw.numerics import Numerics
from spyre.hw.ops import OpDefinition, decode_constant
from spyre.layout import AccessMap, Axis, Int64Array
from spyre.mlir.operation import MASK_CONSTANT, Operation, Tensor


class PlanContext(msgspec.Struct, frozen=True, dict=True):
    """Input of a planner.

    ``accesses``: inputs, index tensors, outputs, in this order, which is also the order of rows
    in ``starts`` (bytes, [operand, core], relative to the first core's start of that operand).
    ``arrangements``: element arrangement per operand (STANDARD where unknown).
    """

    op: Operation
    spec: OpDefinition
    accesses: tuple[TensorAccess, ...]
    starts: Int64Array
    arrangements: tuple[str, ...]
    numerics: Numerics
    threads: int

    @cached_property
    def inputs(self) -> tuple[TensorAccess, ...]:
        """Accesses of the inputs."""
        return self.accesses[: len(self.op.inputs)]

    @cached_property
    def output(self) -> TensorAccess:
        """Access of the one output."""
        return self.accesses[-1]

    @property
    def location(self) -> DeviceLocation:
        """The SDSC, for messages."""
        return DeviceLocation(self.op.file)

    def format_code(self, tensor: Tensor) -> int:
        """FORMAT word of ``tensor``; raises UnsupportedError for formats kernels do not read."""
        found = FORMATS.get(tensor.data_format)
        if found is not None and found.computed:
            return self.numerics.half_format if found.plan_code == tb.DL16 else found.plan_code
        raise UnsupportedError(
            "SPY522",
            f"{self.op.name}: arithmetic on {tensor.data_format} is not simulated yet",
            JsonLocation(self.op.file, tensor.json_path),
            expected=" or ".join(f.name for f in FORMATS.values() if f.computed),
            found=tensor.data_format,
        )

    def any_format_code(self, tensor: Tensor) -> int:
        """FORMAT word of ``tensor``, packed formats and integers included; SPY522 as above."""
        found = FORMATS.get(tensor.data_format)
        if found is None or found.computed or found.plan_code == NO_CODE:
            return self.format_code(tensor)
        return found.plan_code

    def constant(self, name: str) -> float:
        """Value of the SDSC's constant ``name``; raises SdscError when it is missing."""
        if name not in self.op.constants:
            message = f"{self.op.name} needs the constant {name!r}"
            location = JsonLocation(self.op.file, "$.dscs_[0].constantInfo_")
            found = ", ".join(self.op.constants) or "no constants"
            raise SdscError("SPY281", message, location, expected=name, found=found)
        return decode_constant(self.op.constants[name], self.op.constant_formats[name])

    def is_set(self, name: str) -> bool:
        """True if the operation has the optional constant ``name`` and any bit of it is set."""
        known = name in self.spec.optional_constants
        return known and self.op.constants.get(name, 0) != 0

    def stick_error(self, expected: str, found: str) -> SdscError:
        """An SdscError SPY283: the operands' sticks do not fit each other."""
        message = f"{self.op.name}: operands have different sticks"
        return SdscError("SPY283", message, self.location, expected=expected, found=found)

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
    if context.numerics.chunked:
        message = "sums in DL16 chunks are not simulated for this operation"
        path = "$.dscs_[0].computeOp_[0].opFuncName"
        raise context.refuse("SPY542", message, "numerics dl16 or ieee", "dl16-chunk", path)


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
            message = "cores that reduce together write to different places"
            expected = f"one output address for all work slices of {dim!r}"
            raise context.refuse("SPY523", message, expected, f"addresses {distance} bytes apart")


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
        extent, step = context.op.core_extent(dim), sticks.get(dim, 1)
        if dim in sticks:
            extent = whole_steps(context, dim, extent, step)
        axes.append(Axis(extent, tuple(a.step_bytes(dim, step) for a in context.accesses)))
    return axes


def whole_steps(context: PlanContext, dim: str, extent: int, step: int) -> int:
    """Return extent / step; a stick dim that all operands lack counts as one stick."""
    if not any(a.tensor.holds(dim) for a in context.accesses):
        return 1
    if extent % step:
        message = f"{context.op.name}: one core's share of stick dim {dim!r} is not whole sticks"
        location = JsonLocation(context.op.file, "$.numWkSlicesPerDim_")
        expected = f"a multiple of {step} elements"
        raise SdscError("SPY282", message, location, expected=expected, found=f"{extent} elements")
    return extent // step


class RowWriter:
    """Fills one row of the plan table."""

    def __init__(self, kind: int) -> None:
        self.words = np.zeros(tb.WORDS, np.int64)
        self.words[tb.KIND] = kind

    def header(self, **words: int) -> None:
        """Set header words by their lower-case names in :mod:`spyre.hw.plan_table`."""
        for name, value in words.items():
            self.words[getattr(tb, name.upper())] = value

    def operand(self, slot: int, tensor: int, base: int, lane: int = -1, code: int = 0) -> None:
        """Describe operand ``slot``: its tensor's position in the dispatch bases (-1: none)."""
        word = tb.OPERAND + slot * tb.OPERAND_WORDS
        self.words[word + tb.BASE] = base
        self.words[word + tb.TENSOR] = tensor
        self.words[word + tb.LANE] = lane
        self.words[word + tb.FORMAT] = code

    def operands(self, context: PlanContext, bases: Iterable[int]) -> None:
        """Describe all operands as whole sticks of any format, the slots in order."""
        for k, (access, base) in enumerate(zip(context.accesses, bases, strict=False)):
            self.operand(k, k, base, tb.WHOLE_STICK, context.any_format_code(access.tensor))

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


class Mask(msgspec.Struct, frozen=True):
    """One masked interval [start, end) of ``dim``; ``lanes`` if ``dim`` is the stick dim."""

    dim: str
    start: int
    end: int
    value: float
    lanes: bool

    def starts(self, context: PlanContext) -> Int64Array:
        """Coordinate of each core's first element along the masked dim."""
        share = context.op.core_extent(self.dim)
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


# --- cores as axes ----------------------------------------------------------------------------


class CoreGroup(msgspec.Struct, frozen=True):
    """Cores whose starts are affine: start of the first per operand, and an axis per split dim."""

    first: tuple[int, ...]
    axes: dict[str, Axis]

    def walk(self, axes: Sequence[Axis], operand: int) -> AccessMap:
        """The walk of all cores, axes sorted by the pitches of ``operand`` (mostly the output)."""
        return AccessMap(self.first, (*self.axes.values(), *axes)).canonical(operand)


def fold_cores(
    op: Operation, starts: Int64Array, whole_dims: Sequence[str] = ()
) -> list[CoreGroup]:
    """Turn cores into axes. ``starts``: bytes, [operand, core], in the order of ``op.cores``.

    Dims of ``whole_dims`` (those being reduced) are not split into several groups; raises
    UnsupportedError if only such a split would make the starts affine.
    """
    split = [dim for dim in op.dims if op.slices.get(dim, 1) > 1]
    slices = {
        dim: np.fromiter((core.get(dim, 0) for core in op.core_slices), np.int64) for dim in split
    }
    groups: list[CoreGroup] = []
    for cores in _passes(slices, starts.shape[1], bool(whole_dims)):
        picked = {dim: index[cores] for dim, index in slices.items()}
        groups += _groups(op, picked, starts[:, cores], set(whole_dims))
    return groups


def _passes(slices: dict[str, Int64Array], cores: int, together: bool) -> Iterator[Int64Array]:
    """Positions of cores, every work slice at most once per pass: replicas repeat the work.

    Cores that reduce ``together`` are not separated.
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
