"""Operations on values of any layout; operands are converted to matching sticks first.

The rules are those of operations reference §4: elementwise operations need their operands' sticks
along one dim, or one element per stick for a tensor without that dim; a matmul needs K along the
lanes of its left operand and N along those of the right one, with K in whole sticks. An operand in
another layout is copied to scratch memory by a restickify. Eager kernels and the compiler both use
this module. A recorder records operations instead of running them while the compiler decomposes
aten; it is active for the thread that set it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf, prod
from typing import Any, Generic, TypeVar

import msgspec
import torch
from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES
from spyre.layout import DeviceView, Factor
from spyre.mlir.builder import round_up
from spyre.torch_backend.program.builder import ProgramBuilder
from spyre.torch_backend.program.emit import PACKED_MATMUL
from spyre.torch_backend.program.op_spec import (
    DeviceOp,
    Ints,
    LoweringError,
    OpKind,
    Value,
    broadcast_sizes,
    device_format,
    float_bits,
    narrowed,
    range_constants,
)


def with_constants(constant: Callable[[float, str], Any], operands: Sequence[Any]) -> list[Any]:
    """Operands with numbers replaced by constants in the dtype of the last operand that is none."""
    dtype = [v.dtype for v in operands if not isinstance(v, (int, float))][-1]
    return [constant(v, dtype) if isinstance(v, (int, float)) else v for v in operands]


WIDE = 64
"""Elements that conversions between 16 and 32 bits process together."""
WIDE_STICK = 32
"""Elements of a float32 stick."""
MATMUL_STICK = 64
HALF, WORD, INTEGER = "SEN169_FP16", "IEEE_FP32", "IEEE_INT32"

V = TypeVar("V", bound=Any)
"""A value, or the record of one."""


class DerivedOperations(Generic[V]):
    """Operations that are made of others of the same class: ``pointwise``, ``reduce``,
    ``constant`` and ``converted_by``.
    """

    pointwise: Callable[..., V]
    reduce: Callable[..., V]
    constant: Callable[..., V]
    converted_by: Callable[..., V]

    def copy(self, value: V, dtype: str = "") -> V:
        """A copy of the elements' bits; ``dtype``: another of the same device format."""
        return self.pointwise("identity", value, dtype=dtype or value.dtype)

    def mean(self, value: V, dims: Sequence[int]) -> V:
        count = prod(value.sizes[k] for k in dims)
        return self.reduce("mean", value, dims, {"scaling_factor": float_bits(1.0 / count)})

    def convert(self, value: V, dtype: str) -> V:
        """``value`` as another dtype: float32, an int, or one held as DL16.

        Floats that become bool are compared with zero; ints and halves go through float32; floats
        that become ints are truncated, with SPY901 for numbers that int64 has and the card has not.
        """
        if value.dtype == dtype:
            return value
        if dtype == "bool":
            return self.nonzero(value)
        source, target = value.format, device_format(dtype)
        if source == target:
            return replace(value, dtype=dtype)
        if source != WORD:
            name = "dl16tofp32" if source == HALF else "int32tofp32"
            value = self.converted_by(name, value, "float32")
        if target == WORD:
            return value
        if target == HALF:
            return self.converted_by("fp32todl16", value, dtype)
        if dtype == "int64":
            value = finite_for_int64(self, value)
        limits = range_constants("fp32toint32", dtype)
        return self.converted_by("fp32toint32", value, dtype, constants=limits)

    def nonzero(self, value: V) -> V:
        """Whether every element differs from zero, as bool."""
        if value.format == INTEGER:
            value = self.converted_by("int32tofp32", value, "float32")
        return self.truth(self.pointwise("notequal", value, self.constant(0.0, value.dtype)))

    def truth(self, value: V) -> V:
        """1.0 and 0.0 as bool."""
        if value.format == WORD:
            return self.converted_by("fp32todl16", value, "bool")
        return replace(value, dtype="bool")


class Lowering(DerivedOperations[Value]):
    """Adds operations to a program; every method returns its result, in scratch memory.

    ``constants``: numbers among the program's arguments, by argument number.
    """

    def __init__(self) -> None:
        self.builder = builder = ProgramBuilder()
        self.scratch, self.add, self.loop = builder.scratch, builder.add, builder.loop
        self.constants: dict[int, ConstantArgument] = {}
        self._known: dict[tuple[str, str], Value] = {}

    def constant(self, number: float, dtype: str) -> Value:
        """A number, as a value of rank 0 in a launch argument."""
        constant = ConstantArgument(float(number), dtype)
        if constant.key not in self._known:
            self.constants[self.builder.arguments] = constant
            self._known[constant.key] = self.builder.argument(scalar_view(dtype), dtype, True)
        return self._known[constant.key]

    # --- elementwise -----------------------------------------------------------------------------

    def pointwise(
        self,
        name: str,
        *operands: Value | float,
        dtype: str = "",
        constants: Mapping[str, int] | None = None,
        lane: int | None = None,
    ) -> Value:
        """An elementwise operation on operands of one device format, broadcast together.

        Numbers are constants in the dtype of the last operand that is none.
        ``lane``: of the result, default `result_lane`.
        """
        values = with_constants(self.constant, operands)
        sizes = broadcast_sizes([v.sizes for v in values])
        inputs = tuple(v.collapsed() for v in values)
        lane = result_lane(inputs, sizes) if lane is None else lane
        agreed = tuple(self._agreeing(_aligned(v, len(sizes)), lane) for v in inputs)
        into = self.scratch(sizes, dtype or inputs[0].dtype, lane)
        return self.write(name, agreed, into, constants=constants or {})

    def write(self, name: str, inputs: tuple[Value, ...], into: Value, **more: Any) -> Value:
        """An elementwise operation that writes to ``into``, memory or a view of it, which it
        returns; ``more``: fields of `DeviceOp`.
        """
        return self.add(DeviceOp(OpKind.POINTWISE, name, inputs, into, **more))

    def copy_to(self, value: Value, into: Value, **more: Any) -> Value:
        """`write` the elements themselves."""
        return self.write("identity", (value,), into, **more)

    def _agreeing(self, value: Value, lane: int) -> Value:
        """``value`` with sticks along ``lane`` if it has that dim, else one element per stick."""
        wanted = lane if lane >= 0 and value.sizes[lane] > 1 else -1
        return self.with_lane(value, wanted)

    def broadcast(self, value: Value, sizes: Ints, lane: int | None = None) -> Value:
        """A copy of ``value`` broadcast to ``sizes``; ``lane``: of the copy, default the operand's,
        or the last dim that grows if it has none.
        """
        value = _aligned(value.collapsed(), len(sizes))
        if lane is None:
            lane = value.lane_dim
            if lane < 0 and prod(sizes) > value.numel:
                lane = [k for k, n in enumerate(sizes) if n > 1 and value.sizes[k] == 1][-1]
        into = self.scratch(sizes, value.dtype, lane)
        return self.copy_to(self._agreeing(value, lane), into)

    # --- layouts ---------------------------------------------------------------------------------

    def with_lane(self, value: Value, lane: int) -> Value:
        """``value`` with sticks along host dim ``lane``; -1: one element per stick."""
        if value.collapsed() is not value:
            return self._repeated_with_lane(value, lane)
        current = value.lane_dim
        if current == lane or (lane >= 0 and value.sizes[lane] == 1 and current < 0):
            return value
        into = self.scratch(value.sizes, value.dtype, lane)
        return self.add(DeviceOp(OpKind.RESTICKIFY, "ReStickifyOpHBM", (value,), into))

    def _repeated_with_lane(self, value: Value, lane: int) -> Value:
        once = value.collapsed()
        if lane >= 0 and once.sizes[lane] < value.sizes[lane]:
            sizes = tuple(value.sizes[k] if k == lane else n for k, n in enumerate(once.sizes))
            once = self.broadcast(once, sizes)
        return self.with_lane(once, lane).expanded(value.sizes)

    def materialized(self, value: Value) -> Value:
        """``value`` with memory for every element."""
        return value if value.collapsed() is value else self.broadcast(value, value.sizes)

    # --- conversions -----------------------------------------------------------------------------

    def convert(self, value: Value, dtype: str) -> Value:
        """As `DerivedOperations.convert`; elements that repeat are converted once."""
        once = value.collapsed()
        if once is value or value.dtype == dtype:
            return super().convert(value, dtype)
        return super().convert(once, dtype).expanded(value.sizes)

    CONVERSIONS = ("dl16tofp32", "fp32todl16", "fp32toint32", "int32tofp32")
    """Operations between formats."""

    def converted_by(
        self,
        name: str,
        value: Value,
        dtype: str,
        lane: int | None = None,
        constants: Mapping[str, int] | None = None,
    ) -> Value:
        """One of `CONVERSIONS`; ``dtype``, ``lane``: of the result, default the operand's lane."""
        if (once := value.collapsed()) is not value:
            found = self.converted_by(name, once, dtype, lane, constants)
            return found.expanded(value.sizes)
        if lane is not None:
            value = self._agreeing(value, lane)
        if name == "dl16tofp32":
            return self._widened(value)
        if name == "fp32todl16":
            return self._narrowed(value, dtype)
        into = self.scratch(value.sizes, dtype, value.lane_dim)
        return self.write(name, (value,), into, constants=constants or {})

    def _widened(self, value: Value) -> Value:
        # one DL16 stick becomes two of float32, so memory has room for an even number of them
        multiple = wide_multiple(value)
        into = self.scratch(value.sizes, "float32", value.lane_dim, multiple)
        wide = self.write("dl16tofp32", (value,), into, lane_multiple=WIDE)
        return replace(wide, order=None) if multiple else wide

    def _narrowed(self, value: Value, dtype: str) -> Value:
        """Where the last group is not whole, a copy has room for it, and numbers in it."""
        if multiple := wide_multiple(value):
            wide = self.scratch(value.sizes, "float32", value.lane_dim, multiple)
            self.copy_to(value, wide)
            if wide_multiple(wide):
                # the stick beyond the elements is read too: copy numbers there that convert
                self.copy_to(sticks_from_last(value, 0), sticks_from_last(wide, 1))
            value = wide
        into = self.scratch(value.sizes, dtype, value.lane_dim)
        return self.write("fp32todl16", (value,), into, lane_multiple=WIDE)

    # --- reductions ------------------------------------------------------------------------------

    def reduce(
        self,
        name: str,
        value: Value,
        dims: Sequence[int],
        constants: Mapping[str, int] | None = None,
    ) -> Value:
        """A reduction over ``dims``, which have size 1 in the result."""
        sizes = tuple(1 if k in dims else n for k, n in enumerate(value.sizes))
        if sizes == value.sizes:
            return value
        value = self.materialized(value)
        lane = -1 if value.lane_dim in dims else value.lane_dim
        into = self.scratch(sizes, value.dtype, lane)
        return self.add(
            DeviceOp(OpKind.REDUCTION, name, (value,), into, tuple(dims), constants or {})
        )

    # --- matmul ----------------------------------------------------------------------------------

    def matmul(self, left: Value, right: Value) -> Value:
        """``left[.., M, K] · right[.., K, N]`` in DL16, batch dims broadcast."""
        rank = max(len(left.sizes), len(right.sizes))
        return self.product(self.left_factor(left, rank), self.right_factor(right, rank))

    def left_factor(self, left: Value, rank: int) -> Value:
        """``left[.., M, K]`` of ``rank`` dims with K along the lanes, in whole sticks."""
        return self.padded_left(self.unpadded_left(left, rank))

    def right_factor(self, right: Value, rank: int) -> Value:
        """``right[.., K, N]`` of ``rank`` dims with N along the lanes, K up to whole sticks."""
        return self.padded_right(self.unpadded_right(right, rank))

    def unpadded_left(self, left: Value, rank: int) -> Value:
        """``left[.., M, K]`` of ``rank`` dims with K along the lanes, in steps of one pitch."""
        left = self.with_lane(self._held_matrix(_aligned(left, rank)), rank - 1)
        return self.copy(left) if len(left.view.dims[-1]) > 1 else left

    def unpadded_right(self, right: Value, rank: int) -> Value:
        """``right[.., K, N]`` of ``rank`` dims with N along the lanes, K in steps of one pitch."""
        right = self.with_lane(self._held_matrix(_aligned(right, rank)), rank - 1)
        return self.copy(right) if len(right.view.dims[-2]) > 1 else right

    def packed_product(self, left: Value, right: Value) -> Value:
        """``left[M, K] · right[N, K]ᵀ`` of 8-bit floats with sticks along K, in DL16.

        Two of them count as one element of 16 bits up to the SDSC (`PACKED_MATMUL`).
        """
        left, right = self.padded_left(_as_pairs(left)), _as_pairs(right).transposed(0, 1)
        right = self.padded_right(self.with_lane(right, 1))
        pairs, columns = right.sizes
        # the operation reads groups of 8 of the first factor's stick in alternation, so the rows of
        # the second one get the order in which it reads the elements
        ordered = self.scratch(right.sizes, right.dtype, right.lane_dim)
        rows = right.reshaped((pairs // 64, 8, 2, 4, columns)).permuted((0, 2, 1, 3, 4))
        into = ordered.reshaped(rows.sizes)
        self.copy_to(rows, into)
        return self.product(left, ordered, PACKED_MATMUL)

    def product(self, left: Value, right: Value, name: str = "batchmatmul") -> Value:
        """The matmul of two factors."""
        batch = broadcast_sizes([left.sizes[:-2], right.sizes[:-2]])
        rank, columns = len(left.sizes), right.sizes[-1]
        once = broadcast_sizes([each.collapsed().sizes[:-2] for each in (left, right)])
        if once != batch:  # both repeat a matrix, so the product is one that is repeated
            left, right = left.collapsed(), right.collapsed()
        sizes = (*once, left.sizes[-2], columns)
        into = self.scratch(sizes, left.dtype, rank - 1 if columns > 1 else -1)
        made = self.add(DeviceOp(OpKind.MATMUL, name, (left, right), into))
        return made if once == batch else self.broadcast(made, (*batch, *sizes[-2:]))

    def _held_matrix(self, value: Value) -> Value:
        """``value`` with memory for every element of its last two dims."""
        once = value.collapsed()
        sizes = (*once.sizes[:-2], *value.sizes[-2:])
        return value if once.sizes == sizes else self.broadcast(once, sizes).expanded(value.sizes)

    def padded_left(self, left: Value) -> Value:
        """``left`` with zeros in the lanes beyond K, which count as elements from now on."""
        if not left.sizes[-1] % MATMUL_STICK:
            return left
        if not left.padding_is_finite:
            into = self.scratch(left.sizes, left.dtype, left.lane_dim)
            factors = (left, self.constant(1.0, left.dtype))
            left = self.write("mul", factors, into, mask_from=left.sizes[-1])
        lane = left.view.dims[-1][-1] if left.view.dims[-1] else Factor(1, STICK_BYTES, True)
        padded_lane = replace(lane, extent=round_up(lane.extent, MATMUL_STICK))
        dims = (*left.view.dims[:-1], (padded_lane,))
        return replace(left, view=replace(left.view, dims=dims), order=None)

    def padded_right(self, right: Value) -> Value:
        """``right`` with rows of zeros up to whole sticks of K."""
        if not right.sizes[-2] % MATMUL_STICK:
            return right
        rank, inner = len(right.sizes), right.sizes[-2]
        padded = round_up(inner, MATMUL_STICK)
        sizes = (*right.sizes[:-2], padded, right.sizes[-1])
        padded_right = self.scratch(sizes, right.dtype, right.lane_dim)
        zero = self.constant(0.0, right.dtype)
        self.copy_to(zero, narrowed(padded_right, rank - 2, inner, padded - inner))
        self.copy_to(right, narrowed(padded_right, rank - 2, 0, inner))
        return replace(padded_right, order=None)


def _as_pairs(value: Value) -> Value:
    """Rows of 8-bit floats, zero beyond their ends, as rows of half as many 16-bit elements."""
    view = value.view
    *outer, row = view.dims
    if view.lane_dim != len(outer) or len(row) > 1 or not value.padding_is_finite:
        raise LoweringError("8-bit factors without whole sticks along their rows")
    pairs = replace(row[0], extent=-(-row[0].extent // 2))
    halves = replace(view, dims=(*outer, (pairs,)), device_format=HALF)
    return replace(value, view=halves, dtype="float16", order=None)


def finite_for_int64(low: Any, value: Any) -> Any:
    """Replace infinities by the least int32, for conversion to int64.

    On a CPU, torch converts infinities to the least int64. ``value``: float32; ``low``:
    `Lowering` or a recorder of them.
    """
    infinite = low.pointwise("equal", low.pointwise("abs", value), low.constant(inf, "float32"))
    return low.pointwise("where3", infinite, low.constant(-(2.0**31), "float32"), value)


def is_padded(left: Value, right: Value) -> bool:
    """True if K of both factors is whole sticks."""
    return not (left.sizes[-1] % MATMUL_STICK or right.sizes[-2] % MATMUL_STICK)


def wide_multiple(value: Value) -> int:
    """The multiple of elements that float32 memory for conversions is rounded up to; 0 where it has
    whole groups anyway.
    """
    sticks = -(-value.view.lane_extent // WIDE_STICK)
    return WIDE if sticks % 2 else 0


def sticks_from_last(value: Value, ahead: int) -> Value:
    """The last stick of every row along the lanes, or the one ``ahead`` of it, all lanes of it."""
    view, lane = value.view, value.lane_dim
    dims, offset_bytes = list(view.dims), view.offset_bytes
    if lane < 0:
        offset_bytes += ahead * STICK_BYTES
    else:
        lanes = view.elements_per_stick
        *outer, inner = dims[lane]
        offset_bytes += sum((f.extent - 1) * f.pitch_bytes for f in outer)
        offset_bytes += (-(-inner.extent // lanes) - 1 + ahead) * inner.pitch_bytes
        dims[lane] = (replace(inner, extent=lanes),)
    return replace(value, view=replace(view, dims=tuple(dims), offset_bytes=offset_bytes))


def result_lane(inputs: Sequence[Value], sizes: Ints) -> int:
    """The lane dim of the result of an elementwise operation.

    It is the lane dim of the largest operand that has one. If none has, a result that is larger
    than every operand gets sticks along the last dim that all operands lack.
    """
    rank = len(sizes)
    # The largest operand keeps its layout, and the smaller ones are copied.
    lanes = [(v.numel, v.lane_dim + rank - len(v.sizes)) for v in inputs if v.lane_dim >= 0]
    if lanes:
        return max(lanes)[1]
    if prod(sizes) == max(v.numel for v in inputs):
        return -1
    aligned = [_aligned(v, rank) for v in inputs]
    free = [k for k, n in enumerate(sizes) if n > 1 and all(v.sizes[k] == 1 for v in aligned)]
    return free[-1] if free else -1


def _aligned(value: Value, rank: int) -> Value:
    """``value`` with dims of size 1 in front, up to ``rank``."""
    for _ in range(rank - len(value.sizes)):
        value = value.unsqueezed(0)
    return value


class ConstantArgument(msgspec.Struct, frozen=True):
    """A number a program reads from memory, in a format of the card."""

    number: float
    dtype: str

    @property
    def key(self) -> tuple[str, str]:
        """Equal if the bits are equal, unlike ``==``: distinguishes signed zeros, equates NaNs."""
        return self.number.hex(), self.dtype


def scalar_view(dtype: str) -> DeviceView:
    """The view of a tensor of rank 0."""
    return DeviceView((), device_format(dtype))


def store_result(
    low: Lowering, value: Value, goal: Value, *, is_operand: bool = False, overlaps: bool = False
) -> None:
    """Write ``value`` to ``goal``, which has the same sizes and format.

    ``is_operand``: the goal is also an operand, element by element; ``overlaps``: the goal shares
    memory with an operand in another way.
    """
    if value.lane_dim != goal.lane_dim:
        value = low.with_lane(value, goal.lane_dim)
    straight = _is_last(low, value, is_operand) or _is_joined(low, value, goal, is_operand)
    if straight and not overlaps:
        low.builder.output_into(value, goal)
    else:
        low.copy_to(value, goal)


def _is_last(low: Lowering, value: Value, is_operand: bool) -> bool:
    """True if only the last operation writes ``value``, and elementwise if ``is_operand``."""
    last = low.builder.specs[-1] if low.builder.specs else None
    if last is None or value.order is None or last.output.region != value.region:
        return False
    written = sum(spec.output.region == value.region for spec in low.builder.specs)
    return written == 1 and (last.kind is OpKind.POINTWISE or not is_operand)


def _is_joined(low: Lowering, value: Value, goal: Value, is_operand: bool) -> bool:
    """True if the last operations write ``value`` in parts without reading it, and the goal can
    be written in the same parts.
    """
    specs = low.builder.specs
    writers = [k for k, spec in enumerate(specs) if spec.output.region == value.region]
    if is_operand or value.order is None or len(writers) < 2:
        return False
    last = specs[writers[0] :]
    if len(last) != len(writers) or any(v.region == value.region for s in last for v in s.inputs):
        return False
    return all(s.part is not None and len(goal.view.dims[s.part[0]]) == 1 for s in last)


# --- recorders ------------------------------------------------------------------------------------

Recorder = Callable[
    [str, Callable[..., Any], Sequence[Any], tuple[Any, ...], torch.Tensor | None],
    tuple[torch.Tensor, ...],
]
"""(name, lowering, operands, parameters, target) → the results, as tensors of the recorder's kind.

``target``: tensor that the only result would be written to; the result gets its strides.
"""


class NotRecorded(Exception):
    """The call is not a device operation: it runs on the CPU or as other aten operations."""


_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)

current_recorder: Callable[[], Recorder | None] = _recorder.get
"""The recorder of the calling thread. Every eager operation calls it, so it is a C function."""


@contextmanager
def recorded_by(recorder: Recorder | None) -> Iterator[None]:
    """Pass this thread's operations in the block to ``recorder``; with None they run."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)
