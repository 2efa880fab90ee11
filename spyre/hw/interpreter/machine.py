"""The intrinsics of kernels in numpy: bit casts, codecs, fused arithmetic, loops over codes.

Each has the name, the arguments and the bits of its namesake in `spyre.hw.kernels`, and works on
arrays element by element if that takes single numbers. Addresses are the host's, in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from spyre.hw import plan_table as tb
from spyre.hw.ops import CODE_FORMS, OPCODES, OpDefinition
from spyre.hw.plan_table import entry_source

Array = npt.NDArray[Any]
F = np.float32
STICK = 64

# --- memory -----------------------------------------------------------------------------------


class _Memory:
    """The array interface of numpy for memory at an address."""

    def __init__(self, address: int, count: int, code: str) -> None:
        self.__array_interface__ = {
            "data": (int(address), False),
            "shape": (int(count),),
            "typestr": code,
            "version": 3,
        }


def carray(pointer: tuple[int, str], count: int) -> Array:
    """``count`` elements from a pointer on."""
    return np.asarray(_Memory(pointer[0], count, pointer[1]))


def _pointer(code: str) -> Callable[[int], tuple[int, str]]:
    return lambda address: (address, code)


pointer_i64, pointer_i32, pointer_u16 = _pointer("<i8"), _pointer("<i4"), _pointer("<u2")
pointer_u8, pointer_i8, pointer_f32 = _pointer("|u1"), _pointer("|i1"), _pointer("<f4")


def _rows(address: int, rows: int, row_bytes: int, count: int, code: str) -> Array:
    """[row, element] from an address on."""
    first = carray((address, code), 1)
    return as_strided(first, (int(rows), int(count)), (int(row_bytes), first.itemsize))


# --- bits and arithmetic ----------------------------------------------------------------------


def float_bits(value: Any) -> Any:
    """float32 → its bits as int32."""
    return np.asarray(value, F).view(np.int32)[()]


def bits_float(bits: Any) -> Any:
    """int32 bits → float32."""
    return np.asarray(bits, np.int32).view(F)[()]


def _int32_operation(function: Any) -> Callable[[Any, Any], Any]:
    def operation(left: Any, right: Any) -> Any:
        return function(np.asarray(left, np.int32), np.asarray(right, np.int32))[()]

    return operation


add_i32, sub_i32 = _int32_operation(np.add), _int32_operation(np.subtract)
shl_i32, sar_i32 = _int32_operation(np.left_shift), _int32_operation(np.right_shift)
and_i32, or_i32 = _int32_operation(np.bitwise_and), _int32_operation(np.bitwise_or)


def maximum_f32(left: Any, right: Any) -> Any:
    """left > right ? left : right."""
    return np.where(np.greater(left, right), left, right)[()]


def minimum_f32(left: Any, right: Any) -> Any:
    """left < right ? left : right."""
    return np.where(np.less(left, right), left, right)[()]


def _number_extreme(is_better: Any, join_zeros: Any) -> Callable[[Any, Any], Any]:
    def extreme(left: Any, right: Any) -> Any:
        tie = bits_float(join_zeros(float_bits(left), float_bits(right)))
        chosen = np.where(is_better(left, right), left, right)
        chosen = np.where(np.equal(left, right), tie, chosen)
        return np.where(np.isnan(right), left, chosen)[()]

    return extreme


maximum_number = _number_extreme(np.greater, np.bitwise_and)
minimum_number = _number_extreme(np.less, np.bitwise_or)


def select(condition: Any, yes: Any, no: Any) -> Any:
    """``yes`` where the condition is true, else ``no``."""
    return np.where(condition, yes, no)[()]


def multiply_add(left: Any, right: Any, addend: Any) -> Any:
    """left · right + addend in float32, rounded once.

    The product is exact in float64. Their sum there is rounded to odd, which a second rounding, of
    29 bits fewer, does not notice (Boldo and Melquiond).
    """
    product = np.multiply(left, right, dtype=np.float64)
    addend = np.asarray(addend, np.float64)
    total = np.asarray(product + addend)
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0.0) & (bits & 1 == 0)
    towards = np.where((error > 0.0) == (total > 0.0), 1, -1)
    return (bits + np.where(inexact, towards, 0)).view(np.float64).astype(F)[()]


# --- codecs -----------------------------------------------------------------------------------

_DROPPED, _NINF = 14, 0x7FFF
_REBIAS, _REBIASED = (127 - 31) << 23, (127 - 31) << 9
_INFINITY = 0x7F800000
_ZERO_END = _REBIAS + (1 << _DROPPED)
_NUMBERS_END = _REBIAS + (_NINF << _DROPPED)


@cache
def _dl16_values() -> Array:
    """float32 of every DL16 code."""
    codes = np.arange(1 << 16)
    magnitude = codes & 0x7FFF
    bits = (magnitude << _DROPPED) + _REBIAS
    bits = np.where(magnitude == 0, 0, np.where(magnitude == _NINF, _INFINITY, bits))
    return (bits | (codes & 0x8000) << 16).astype(np.uint32).view(F)


@cache
def _half_values() -> Array:
    """float32 of every IEEE binary16; NaN are quiet."""
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(F)
    bits = values.view(np.uint32)
    return np.where(np.isnan(values), bits | 0x400000, bits).view(F)


def decode_dl16(code: Any) -> Any:
    """DL16 code → float32."""
    return _dl16_values()[code]


def decode_half(code: Any) -> Any:
    """IEEE binary16 bits → float32."""
    return _half_values()[code]


def _parts(value: Any) -> tuple[Any, Any]:
    """Sign bit as that of 16 bits, and magnitude bits."""
    bits = float_bits(value)
    return (bits >> 16) & 0x8000, bits & 0x7FFFFFFF


def encode_dl16(value: Any) -> Any:
    """float32 → DL16 code: nearest, ties away; overflow, inf and NaN → 0x7FFF | sign."""
    sign, magnitude = _parts(value)
    # as unsigned: half of the last place carries a NaN's bits into the sign
    rounded = (magnitude.view(np.uint32) + np.uint32(1 << (_DROPPED - 1))) >> _DROPPED
    code = np.clip(rounded.astype(np.int32) - _REBIASED, 0, _NINF)
    return (code | sign).astype(np.uint16)[()]


def encode_half(value: Any) -> Any:
    """float32 → IEEE binary16 bits, nearest even."""
    with np.errstate(all="ignore"):
        code = np.asarray(value, F).astype(np.float16).view(np.uint16)
    sign, magnitude = _parts(value)
    nan = ((magnitude >> 13) & 0x3FF) | 0x7E00 | sign
    return np.where(magnitude > _INFINITY, nan, code).astype(np.uint16)[()]


def _added(magnitude: Any, add: int, odd: int, dropped: int) -> Any:
    """Magnitude bits plus the increment of a rounding rule, unsigned."""
    bits = np.asarray(magnitude).astype(np.int64)
    return bits + int(add) + ((bits >> dropped) & int(odd))


def encode_dl16_as(value: Any, add: int, odd: int, largest: int) -> Any:
    """float32 → DL16 code by a rule; inf and NaN → 0x7FFF, beyond it ``largest``, with the sign."""
    sign, magnitude = _parts(value)
    code = (_added(magnitude, add, odd, _DROPPED) >> _DROPPED) - _REBIASED
    code = np.clip(code, 0, int(largest))
    return (np.where(magnitude >= _INFINITY, _NINF, code) | sign).astype(np.uint16)[()]


def encode_bfloat16_as(value: Any, add: int, odd: int) -> Any:
    """float32 → bfloat16 code by a rule over 16 dropped bits; NaN → 0x7FC0 with the sign."""
    sign, magnitude = _parts(value)
    code = _added(magnitude, add, odd, 16) >> 16
    return (np.where(magnitude > _INFINITY, 0x7FC0, code) | sign).astype(np.uint16)[()]


def add_rounded(total: Any, term: Any, add: int, odd: int) -> Any:
    """float32(total + term) rounded to a DL16 number by a rule; NINF is ±inf."""
    return _rounded(np.add(total, term, dtype=F), add, odd)


def add_product_rounded(total: Any, left: Any, right: Any, add: int, odd: int) -> Any:
    """float32(total + float32(left · right)) rounded to a DL16 number by a rule."""
    return _rounded(np.add(total, np.multiply(left, right, dtype=F), dtype=F), add, odd)


def _rounded(value: Any, add: int, odd: int) -> Any:
    sign, magnitude = _parts(value)
    rounded = _added(magnitude, add, odd, _DROPPED) & (-1 << _DROPPED)
    rounded = np.where(rounded < _ZERO_END, 0, rounded)
    rounded = np.where(rounded >= _NUMBERS_END, _INFINITY, rounded)
    return (rounded | sign << 16).astype(np.uint32).view(F)[()]


def order_key(code: Any) -> Any:
    """DL16 code → int16 that compares as the number does."""
    signed = np.asarray(code).view(np.int16)
    return (signed ^ ((signed >> 15) & np.int16(0x7FFF)))[()]


def key_code(key: Any) -> Any:
    """Inverse of `order_key`."""
    return order_key(key).view(np.uint16)


def maximum_i16(left: Any, right: Any) -> Any:
    """The larger."""
    return np.maximum(left, right)


def minimum_i16(left: Any, right: Any) -> Any:
    """The smaller."""
    return np.minimum(left, right)


# --- loops over codes -------------------------------------------------------------------------


def _operation_on_codes(row: OpDefinition, *codes: Array) -> Array:
    """The staged arithmetic of the elementwise kernel, which gives the bits of the code form."""
    from spyre.hw.interpreter.source import kernels_of

    kernel = kernels_of("spyre.hw.kernels.families.elementwise")
    shape, opcode = codes[0].shape, OPCODES[row.kernel_op]
    numbers = [decode_dl16(x).reshape(-1) for x in codes]
    out, constants = np.empty_like(numbers[0]), np.zeros(2, F)
    if row.inputs == 1:
        kernel["apply_unary"](opcode, False, *numbers, out, constants)
    elif row.inputs == 2:
        kernel["apply_binary"](opcode, *numbers, out, constants)
    else:
        kernel["apply_many"](opcode, *numbers, *numbers[:2], out)
    return np.asarray(encode_dl16(out)).reshape(shape)


CODE_OPERATIONS: dict[str, Callable[..., Any]] = {
    name: partial(_operation_on_codes, row) for name, row in CODE_FORMS.items()
}


def emit_elementwise(
    lanes: int, operation: Any, operands: Sequence[int], pitches: Sequence[int], *extents: int
) -> None:
    """z[i] = op(x[i], ...) on codes, in runs; operand k is one code per stick if ``lanes`` has bit
    k. Operands: all addresses, then of each the bytes from stick to stick. ``extents``: runs,
    sticks of a run.
    """
    half, shape = len(operands) // 2, (*map(int, extents), STICK)
    *inputs, z = (
        as_strided(carray((address, "<u2"), 1), shape, (int(step), int(pitch), 2))
        for address, pitch, step in zip(
            operands[:half], operands[half:], pitches[:half], strict=True
        )
    )
    for k, x in enumerate(inputs):
        inputs[k] = np.broadcast_to(x[..., :1], shape) if lanes >> k & 1 else x
    z[...] = operation(*inputs)


def _groups(place: tuple[int, int], runs: int, count: int, code: str, group: int) -> Array:
    """[run, group, element] of ``count`` elements per run; ``place``: address, bytes of a run."""
    return _rows(place[0], runs, place[1], count, code).reshape(runs, -1, group)


def emit_widen(by_fours: bool, operands: Sequence[int], pitches: Sequence[int], *n: int) -> None:
    """float32 of sticks in two each, four codes or half a stick by turns; operands codes, both."""
    source, *targets = zip(operands, pitches, strict=True)
    group = 4 if by_fours else STICK // 2
    values = decode_dl16(_groups(source, n[0], STICK, "<u2", group))
    for k, target in enumerate(targets):
        _groups(target, n[0], STICK // 2, "<f4", group)[...] = values[:, k::2]


def emit_narrow(by_fours: bool, operands: Sequence[int], pitches: Sequence[int], *n: int) -> None:
    """The sticks that `emit_widen` makes two of; operands these, the codes."""
    *sources, target = zip(operands, pitches, strict=True)
    group = 4 if by_fours else STICK // 2
    parts = [_groups(source, n[0], STICK // 2, "<f4", group) for source in sources]
    codes = encode_dl16(np.stack(parts, axis=2).reshape(n[0], -1, group))
    _groups(target, n[0], STICK, "<u2", group)[...] = codes


def make_choice(emits: Mapping[int, Any]) -> Callable[..., None]:
    """One of several loops, by its number."""

    def loop(number: int, *arguments: Any) -> None:
        emits[int(number)](*arguments)

    return loop


def stick_loops(
    kind: int, operands: Sequence[int], pitches: Sequence[int], runs: int, count: int
) -> None:
    """Copy sticks, or the first element of each to all of a stick; operands source, target."""
    code, count = ("<f4", STICK // 2) if kind == tb.SPREAD_WORD else ("<u2", STICK)
    source, target = (
        _rows(a, runs, p, count, code) for a, p in zip(operands, pitches, strict=True)
    )
    for x, y in zip(source, target, strict=True):  # in this order: they may overlap
        y[...] = x.copy() if kind == tb.COPY else x[0]


def decode_runs(
    code: int, operands: Sequence[int], pitches: Sequence[int], runs: int, count: int
) -> None:
    """target[i] = float32 of source[i], of runs of elements; operands source, target."""
    (source, target), (step, target_step) = operands, pitches
    decode = decode_half if code == tb.HALF else decode_dl16
    values = decode(_rows(source, runs, step, count, "<u2"))
    _rows(target, runs, target_step, count, "<f4")[...] = values


def encode_runs(
    code: int, operands: Sequence[int], pitches: Sequence[int], runs: int, count: int
) -> None:
    """target[i] = code of the float32 source[i]; see `decode_runs`."""
    (source, target), (step, target_step) = operands, pitches
    encode = encode_half if code == tb.HALF else encode_dl16
    codes = encode(_rows(source, runs, step, count, "<f4"))
    _rows(target, runs, target_step, count, "<u2")[...] = codes


def add_four(operands: Sequence[int], count: int) -> None:
    """target[i] += (a[i] + b[i]) + (c[i] + d[i]): codes to float32; operands a, bytes to b, ..."""
    first, pitch_bytes, target = operands
    a, b, c, d = decode_dl16(_rows(first, 4, pitch_bytes, count, "<u2"))
    total = carray((target, "<f4"), count)
    total += (a + b) + (c + d)


def largest_of_four(operands: Sequence[int], count: int) -> None:
    """keys[i] = the largest of itself and the keys of four codes; operands as of `add_four`."""
    first, pitch_bytes, target = operands
    keys, codes = carray((target, "<i2"), count), _rows(first, 4, pitch_bytes, count, "<u2")
    keys[:] = np.maximum(keys, order_key(codes).max(axis=0))


def smallest_of_four(operands: Sequence[int], count: int) -> None:
    """See `largest_of_four`."""
    first, pitch_bytes, target = operands
    keys, codes = carray((target, "<i2"), count), _rows(first, 4, pitch_bytes, count, "<u2")
    keys[:] = np.minimum(keys, order_key(codes).min(axis=0))


def _combine_lanes(combine: Callable[..., Array], operands: Sequence[int], count: int) -> None:
    values = carray((operands[0], "<f4"), count).reshape(-1, STICK)
    found = values
    while found.shape[1] > 1:
        half = found.shape[1] // 2
        found = combine(found[:, half:], found[:, :half])
    values[:] = found


def add_lanes(operands: Sequence[int], count: int) -> None:
    """All lanes of each stick become the sum of its halves, the halves of that, and so on."""
    _combine_lanes(lambda upper, lower: lower + upper, operands, count)


def largest_lane(operands: Sequence[int], count: int) -> None:
    """See `add_lanes`."""
    _combine_lanes(maximum_number, operands, count)


def smallest_lane(operands: Sequence[int], count: int) -> None:
    """See `add_lanes`."""
    _combine_lanes(minimum_number, operands, count)


def row_products(
    code: int, operands: Sequence[int], pitches: Sequence[int], runs: int, count: int
) -> None:
    """c[j] += a[k] · b[k, j] of a stick of columns; operands a, codes b, bytes between rows, c."""
    factors, rows, pitch_bytes, sums = operands
    left = _rows(factors, runs, pitches[0], count, "<f4")
    decode = decode_half if code == tb.HALF else decode_dl16
    right = decode(_rows(rows, count, pitch_bytes, STICK, "<u2"))
    _multiply(left, right, _rows(sums, runs, pitches[3], STICK, "<f4"))


# --- matrix products --------------------------------------------------------------------------

LANES = 16
WIDTH, TALL, SHORT = 64, 64, 4
"""Shape of the blocks, which does not change any sum."""
_LOW_BITS = 0xFFF


def _multiply(a: Array, b: Array, c: Array) -> None:
    """c += a · b, one product at a time in order of k; products of 12-bit fractions are exact."""
    is_exact = not any((side.view(np.uint32) & _LOW_BITS).any() for side in (a, b))
    for k in range(a.shape[1]):
        if is_exact:
            c += a[:, k, None] * b[k]
        else:
            c[...] = multiply_add(a[:, k, None], b[k], c)


def _microkernel(rows: int) -> Callable[..., None]:
    def microkernel(a: int, a_floats: int, b: int, k_count: int, c: int, c_floats: int) -> None:
        left = _rows(a, rows, 4 * a_floats, k_count, "<f4")
        right = _rows(b, k_count, 4 * WIDTH, WIDTH, "<f4")
        total = _rows(c, rows, 4 * c_floats, WIDTH, "<f4")
        _multiply(np.ascontiguousarray(left), right, total)

    return microkernel


tall_microkernel, short_microkernel = _microkernel(TALL), _microkernel(SHORT)


def transpose_tile(source: int, source_pitch: int, target: int, target_pitch: int) -> None:
    """Transpose 16x16 16-bit elements."""
    tile = _rows(source, 16, source_pitch, 16, "<u2")
    _rows(target, 16, target_pitch, 16, "<u2")[...] = tile.T.copy()


def prefetch_line(address: int) -> None:
    """Do nothing: it is a hint."""


def call_entry(
    function: Callable[..., int], table: int, bases: int, memory: int, scratch: int, *units: int
) -> int:
    """Call a kernel."""
    return function(table, bases, memory, scratch, *units)


def entry(kernel: Callable[..., Any], reports_faults: bool = False) -> Callable[..., int]:
    """The entry of a kernel, which takes addresses."""
    code = kernel.__code__
    parameters = code.co_varnames[: code.co_argcount]
    names = {**globals(), "kernel": kernel}
    exec(entry_source("run", parameters, reports_faults), names)
    run: Callable[..., int] = names["run"]
    return run


IN_PLACE_OF: dict[str, dict[str, Any]] = {
    "spyre.hw.kernels.families.matmul": {
        "prefetch_piece": lambda address, piece: None,
        "prefetch_tile": lambda address: None,
    }
}
"""Functions of modules of kernels that do nothing here."""

ELEMENTWISE = frozenset(
    {
        float_bits, bits_float, add_i32, sub_i32, shl_i32, sar_i32, and_i32, or_i32, maximum_f32,
        minimum_f32, maximum_number, minimum_number, multiply_add, select, decode_dl16, decode_half,
        encode_dl16, encode_half, encode_dl16_as, encode_bfloat16_as, add_rounded,
        add_product_rounded, order_key, key_code, maximum_i16, minimum_i16, abs,
    }
)  # fmt: skip
"""Functions that take arrays where their namesake takes a number."""

OFFERED = [
    name
    for name, value in list(globals().items())
    if not name.startswith("_") and getattr(value, "__module__", __name__) == __name__
]
