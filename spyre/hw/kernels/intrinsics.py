"""The processor that numba compiles for, and the machine-level operations it does not offer: bit
casts, codecs, pointers, calls.

The processor is the host's, or that of NUMBA_CPU_NAME and _FEATURES. Its instructions decide widths
of vectors and how numbers are packed and converted, but no result.

numba types int32 arithmetic as int64, which halves the vectors, so the number-format codecs are
written as 32-bit LLVM IR. Format rules: hardware reference §1.2.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spyre import config

_WORDS = (
    "define <{0} x i{1}> @f(<{0} x i{1}> %x) {{ %y = add <{0} x i{1}> %x, %x ret <{0} x i{1}> %y }}"
)
_PROBES = {
    "avx2": (_WORDS.format(8, 32), "vpaddd\t%ymm"),
    "avx512f": (_WORDS.format(16, 32), "vpaddd\t%zmm"),
    "avx512bw": (_WORDS.format(32, 16), "vpaddw\t%zmm"),
    "f16c": ("define float @f(half %x) { %y = fpext half %x to float ret float %y }", "vcvtph2ps"),
}
"""By feature of x86: a function, and a text that its assembly contains if there is the feature."""


@cache
def has_feature(name: str) -> bool:
    """Whether the processor compiled for has one of these features of x86."""
    chosen, features = numba.config.CPU_NAME, numba.config.CPU_FEATURES
    if not chosen and features is None:
        return bool(llvm.get_host_cpu_features().get(name, False))
    # names imply features that LLVM keeps to itself: what it makes of a function tells
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    if features is None:
        features = llvm.get_host_cpu_features().flatten()
    machine = target.create_target_machine(cpu=chosen or "", features=features)
    function, instruction = _PROBES[name]
    return instruction in machine.emit_assembly(llvm.parse_assembly(function))


def vector_width() -> int:
    """float32 lanes of the widest vector worth using: 16 with AVX-512, else 8."""
    chosen = config.VECTOR_WIDTH.read()
    if chosen in ("8", "16"):
        return int(chosen)
    return 16 if has_feature("avx512f") else 8


LANES = vector_width()

I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
F32 = ir.FloatType()

# DL16: 1 sign, 6 exponent (bias 31), 9 fraction bits; binary32 has bias 127 and 23 fraction bits.
_REBIAS = 127 - 31
_SHIFT = 23 - 9
_NINF = 0x7FFF
_F32_INF = 0x7F800000
_HALF_INF = 0x7C00 << 13
_HALF_INSTRUCTIONS = platform.machine() not in ("x86_64", "AMD64") or has_feature("f16c")
"""Without them LLVM calls functions of a library that is not there, and ends the process."""


def _i32(value: int) -> Any:
    return ir.Constant(I32, value)


def counted_loop(
    b: Any,
    count: Any,
    step: int,
    initial: Sequence[Any],
    body: Callable[[Any, Sequence[Any]], Sequence[Any]],
) -> Sequence[Any]:
    """Emit ``body(element, values)`` for element 0, ``step``, ... below ``count``, at least once.

    ``values``: ``initial``, then the ones that the body has returned, all of them phi nodes.
    Returns the last ones.
    """
    before, function = b.block, b.function
    head, done = function.append_basic_block("loop"), function.append_basic_block("loop_done")
    b.branch(head)
    b.position_at_end(head)
    element, values = b.phi(I64), [b.phi(value.type) for value in initial]
    for phi, value in zip((element, *values), (ir.Constant(I64, 0), *initial), strict=True):
        phi.add_incoming(value, before)
    updated = body(element, values)
    following = b.add(element, ir.Constant(I64, step))
    for phi, value in zip((element, *values), (following, *updated), strict=True):
        phi.add_incoming(value, b.block)
    b.cbranch(b.icmp_signed("<", following, count), head, done)
    b.position_at_end(done)
    return updated


@intrinsic
def decode_dl16(typing_context, code):
    """DL16 code (uint16) → float32, exact; 0x7FFF/0xFFFF are +inf/-inf as the ALU sees them."""

    def codegen(context, b, signature, args):
        # The sign-extended code shifted up leaves three copies of the sign on top; two make room
        # for the exponent's new bits.
        shifted = b.shl(b.sext(args[0], I32), _i32(_SHIFT))
        bits = b.add(b.and_(shifted, _i32(0x9FFFFFFF)), _i32(_REBIAS << 23))
        magnitude = b.and_(args[0], ir.Constant(I16, 0x7FFF))
        # of the codes with exponent 0 only zero needs care: DL16 has no denormal numbers
        zero = b.icmp_unsigned("==", magnitude, ir.Constant(I16, 0))
        ninf = b.icmp_unsigned("==", magnitude, ir.Constant(I16, _NINF))
        bits = b.select(zero, b.and_(bits, _i32(-0x80000000)), bits)
        to_infinity = _i32(_F32_INF - ((_NINF << _SHIFT) + (_REBIAS << 23)))
        bits = b.select(ninf, b.add(bits, to_infinity), bits)
        return b.bitcast(bits, F32)

    return types.float32(types.uint16), codegen


@intrinsic
def encode_dl16(typing_context, value):
    """float32 → DL16 code: nearest, ties away from zero; overflow, inf and NaN → 0x7FFF|sign."""

    def codegen(context, b, signature, args):
        bits = b.bitcast(args[0], I32)
        sign = b.and_(b.lshr(bits, _i32(16)), _i32(0x8000))
        magnitude = b.and_(bits, _i32(0x7FFFFFFF))
        # half of the last place is added to the magnitude: ties go away from zero, and a carry
        # into the exponent is what rounding up to the next power of two needs
        rounded = b.lshr(b.add(magnitude, _i32(1 << (_SHIFT - 1))), _i32(_SHIFT))
        code = b.sub(rounded, _i32(_REBIAS << 9))
        code = b.select(b.icmp_signed("<", code, _i32(0)), _i32(0), code)
        code = b.select(b.icmp_signed(">", code, _i32(_NINF)), _i32(_NINF), code)
        return b.trunc(b.or_(code, sign), I16)

    return types.uint16(types.float32), codegen


@intrinsic
def decode_half(typing_context, code):
    """IEEE binary16 bits (uint16) → float32, exact."""
    return types.float32(types.uint16), lambda c, b, s, a: decoded_half(b, a[0])


def _constants(value: Any) -> tuple[Callable[[Any], Any], Callable[[Any, float], Any]]:
    """The type and the constant of a type for a number, or for each lane of a vector."""
    count = getattr(value.type, "count", 0)

    def each(kind: Any) -> Any:
        return ir.VectorType(kind, count) if count else kind

    def constant(kind: Any, value: float) -> Any:
        return ir.Constant(each(kind), [ir.Constant(kind, value)] * count if count else value)

    return each, constant


def decoded_half(b: Any, code: Any) -> Any:
    """float32 of binary16 bits, of one number or of a vector of them, as vcvtph2ps gives it."""
    each, constant = _constants(code)
    if _HALF_INSTRUCTIONS:
        return b.fpext(b.bitcast(code, each(ir.HalfType())), each(F32))
    infinity, bits = constant(I32, _HALF_INF), b.zext(code, each(I32))
    sign = b.shl(b.and_(bits, constant(I32, 0x8000)), constant(I32, 16))
    moved = b.shl(b.and_(bits, constant(I32, 0x7FFF)), constant(I32, 23 - 10))
    # as float32 its exponent is 112 too small; the product is exact, also of subnormal numbers
    number = b.fmul(b.bitcast(moved, each(F32)), constant(F32, 2.0**112))
    special = b.or_(moved, constant(I32, _F32_INF))
    is_nan = b.icmp_signed(">", moved, infinity)
    special = b.select(is_nan, b.or_(special, constant(I32, 0x400000)), special)
    is_finite = b.icmp_signed("<", moved, infinity)
    found = b.select(is_finite, b.bitcast(number, each(I32)), special)
    return b.bitcast(b.or_(sign, found), each(F32))


@intrinsic
def encode_half(typing_context, value):
    """float32 → IEEE binary16 bits, nearest even."""
    return types.uint16(types.float32), lambda c, b, s, a: encoded_half(b, a[0])


def encoded_half(b: Any, value: Any) -> Any:
    """binary16 bits of a float32 number or of a vector of them, as vcvtps2ph gives them, rounding
    to nearest even.
    """
    each, constant = _constants(value)
    if _HALF_INSTRUCTIONS:
        return b.bitcast(b.fptrunc(value, each(ir.HalfType())), each(I16))

    def words(number: int) -> Any:
        return constant(I32, number)

    bits = b.bitcast(value, each(I32))
    sign = b.and_(b.lshr(bits, words(16)), words(0x8000))
    magnitude = b.and_(bits, words(0x7FFFFFFF))
    odd = b.and_(b.lshr(magnitude, words(13)), words(1))
    moved = b.add(b.add(magnitude, odd), words(0xFFF - (112 << 23)))
    normal = b.lshr(moved, words(13))
    # 0.5 has a last place of 2^-24, that of subnormal halves: the sum is rounded to it
    rounded = b.fadd(b.bitcast(magnitude, each(F32)), constant(F32, 0.5))
    tiny = b.sub(b.bitcast(rounded, each(I32)), words(0x3F000000))
    code = b.select(b.icmp_signed("<", magnitude, words(113 << 23)), tiny, normal)
    code = b.select(b.icmp_signed(">=", magnitude, words(143 << 23)), words(0x7C00), code)
    nan = b.or_(b.and_(b.lshr(magnitude, words(13)), words(0x3FF)), words(0x7E00))
    code = b.select(b.icmp_signed(">", magnitude, words(_F32_INF)), nan, code)
    return b.trunc(b.or_(code, sign), each(I16))


@intrinsic
def float_bits(typing_context, value):
    """float32 → its bits as int32."""
    return types.int32(types.float32), lambda c, b, s, a: b.bitcast(a[0], I32)


@intrinsic
def bits_float(typing_context, bits):
    """int32 bits → float32."""
    return types.float32(types.int32), lambda c, b, s, a: b.bitcast(a[0], F32)


def _int32_operation(name: str) -> Any:
    @intrinsic
    def operation(typing_context, left, right):
        def codegen(context, b, signature, args):
            return getattr(b, name)(args[0], args[1])

        return types.int32(types.int32, types.int32), codegen

    return operation


add_i32 = _int32_operation("add")
sub_i32 = _int32_operation("sub")
shl_i32 = _int32_operation("shl")
sar_i32 = _int32_operation("ashr")
and_i32 = _int32_operation("and_")
or_i32 = _int32_operation("or_")


def _extreme(comparison: str, kind: Any) -> Any:
    """left > right ? left : right, or the same with "<", one vector instruction."""

    @intrinsic
    def extreme(typing_context, left, right):
        def codegen(context, b, signature, args):
            compare = b.fcmp_ordered if kind is types.float32 else b.icmp_signed
            return b.select(compare(comparison, *args), *args)

        return kind(kind, kind), codegen

    return extreme


maximum_f32, minimum_f32 = _extreme(">", types.float32), _extreme("<", types.float32)
maximum_i16, minimum_i16 = _extreme(">", types.int16), _extreme("<", types.int16)


@intrinsic
def select(typing_context, condition, yes, no):
    """``yes`` if the condition is true, else ``no``, both of which are computed."""

    def codegen(context, b, signature, args):
        return b.select(*args)

    return types.float32(types.boolean, types.float32, types.float32), codegen


@intrinsic
def multiply_add(typing_context, left, right, addend):
    """left · right + addend in float32, rounded once on every processor.

    LLVM would fuse a product and a sum only where the processor can and it pays.
    """

    def codegen(context, b, signature, args):
        return b.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), codegen


def number_extreme(comparison: str, join_zeros: str, b: Any, left: Any, right: Any) -> Any:
    """maximumNumber or minimumNumber of IEEE 754-2019 of float32 or vectors of them: NaN loses, +0
    is above -0.
    """
    number = left.type
    word = I32 if number == F32 else ir.VectorType(I32, number.count)
    # of equal numbers only zeros differ in bits: "and" keeps a sign both have, "or" any
    bits = [b.bitcast(x, word) for x in (left, right)]
    tie = b.bitcast(getattr(b, join_zeros)(*bits), number)
    chosen = b.select(b.fcmp_ordered(comparison, left, right), left, right)
    chosen = b.select(b.fcmp_ordered("==", left, right), tie, chosen)
    return b.select(b.fcmp_unordered("uno", right, right), left, chosen)


def _number_extreme(comparison: str, join_zeros: str) -> Any:
    @intrinsic
    def extreme(typing_context, left, right):
        """See `number_extreme`."""

        def codegen(context, b, signature, args):
            return number_extreme(comparison, join_zeros, b, *args)

        return types.float32(types.float32, types.float32), codegen

    return extreme


maximum_number = _number_extreme(">", "and_")
minimum_number = _number_extreme("<", "or_")


def _order_key(context: Any, b: Any, signature: Any, args: Any) -> Any:
    # negative numbers count down in two's complement once their magnitude bits are inverted
    spread = b.ashr(args[0], ir.Constant(I16, 15))
    return b.xor(args[0], b.and_(spread, ir.Constant(I16, 0x7FFF)))


@intrinsic
def order_key(typing_context, code):
    """DL16 code → int16 that compares as the number does; 0x7FFF/0xFFFF are the extremes."""
    return types.int16(types.uint16), _order_key


@intrinsic
def key_code(typing_context, key):
    """Inverse of :func:`order_key`."""
    return types.uint16(types.int16), _order_key


def _pointer_cast(numba_type: Any, llvm_type: Any) -> Any:
    @intrinsic
    def cast(typing_context, address):
        def codegen(context, b, signature, args):
            return b.inttoptr(args[0], llvm_type.as_pointer())

        return types.CPointer(numba_type)(types.int64), codegen

    return cast


pointer_i64 = _pointer_cast(types.int64, I64)
pointer_i32 = _pointer_cast(types.int32, I32)
pointer_u16 = _pointer_cast(types.uint16, I16)
pointer_u8 = _pointer_cast(types.uint8, ir.IntType(8))
pointer_i8 = _pointer_cast(types.int8, ir.IntType(8))
pointer_f32 = _pointer_cast(types.float32, F32)


@intrinsic
def prefetch_line(typing_context, address):
    """Ask for the cache line at host ``address``; a hint that never faults."""

    def codegen(context, b, signature, args):
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
        b.call(function, [b.inttoptr(args[0], byte), _i32(0), _i32(2), _i32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def call_entry(typing_context, function, table, bases, memory, scratch, first, last):
    """Call a kernel entry by address; returns its status word."""

    def codegen(context, b, signature, args):
        kind = ir.FunctionType(I64, [I64] * 6)
        return b.call(b.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(*([types.int64] * 7)), codegen


_REBIASED = _REBIAS << 9
_ZERO_END = (_REBIAS << 23) + (1 << _SHIFT)
"""Bits of the smallest DL16 number."""
_NUMBERS_END = (_REBIAS << 23) + (_NINF << _SHIFT)
"""Bits a NINF would have as a number."""


def _narrow(b: Any, value: Any) -> Any:
    return b.trunc(value, I32)


def _added(b: Any, magnitude: Any, add: Any, odd: Any, dropped: int) -> Any:
    """Magnitude bits plus the increment of a rounding rule."""
    last = b.and_(b.lshr(magnitude, _i32(dropped)), odd)
    return b.add(b.add(magnitude, add), last)


def _parts(b: Any, value: Any) -> tuple[Any, Any]:
    """Sign bit and magnitude bits of a float32."""
    bits = b.bitcast(value, I32)
    return b.and_(bits, _i32(-0x80000000)), b.and_(bits, _i32(0x7FFFFFFF))


@intrinsic
def encode_dl16_as(typing_context, value, add, odd, largest):
    """float32 → DL16 code by a rule: ``add``, and ``odd`` if the last bit kept is set, are added to
    the dropped bits. Infinity and NaN → 0x7FFF, larger numbers → ``largest``, with the sign.
    """

    def codegen(context, b, signature, args):
        sign, magnitude = _parts(b, args[0])
        add, odd, largest = (_narrow(b, a) for a in args[1:])
        code = b.lshr(_added(b, magnitude, add, odd, _SHIFT), _i32(_SHIFT))
        code = b.sub(code, _i32(_REBIASED))
        code = b.select(b.icmp_signed("<", code, _i32(0)), _i32(0), code)
        code = b.select(b.icmp_signed(">", code, largest), largest, code)
        special = b.icmp_signed(">=", magnitude, _i32(_F32_INF))
        code = b.select(special, _i32(_NINF), code)
        return b.trunc(b.or_(code, b.lshr(sign, _i32(16))), I16)

    return types.uint16(types.float32, types.int64, types.int64, types.int64), codegen


@intrinsic
def add_rounded(typing_context, total, term, add, odd):
    """float32(total + term) rounded to a DL16 number by a rule; NINF is ±inf."""

    def codegen(context, b, signature, args):
        return _rounded(b, b.fadd(args[0], args[1]), args[2], args[3])

    return types.float32(types.float32, types.float32, types.int64, types.int64), codegen


@intrinsic
def add_product_rounded(typing_context, total, left, right, add, odd):
    """float32(total + float32(left · right)) rounded to a DL16 number by a rule."""

    def codegen(context, b, signature, args):
        product = b.fmul(args[1], args[2])
        return _rounded(b, b.fadd(args[0], product), args[3], args[4])

    return types.float32(*([types.float32] * 3), types.int64, types.int64), codegen


def _rounded(b: Any, value: Any, add: Any, odd: Any) -> Any:
    sign, magnitude = _parts(b, value)
    rounded = _added(b, magnitude, _narrow(b, add), _narrow(b, odd), _SHIFT)
    rounded = b.and_(rounded, _i32(-1 << _SHIFT))
    rounded = b.select(b.icmp_unsigned("<", rounded, _i32(_ZERO_END)), _i32(0), rounded)
    beyond = b.icmp_unsigned(">=", rounded, _i32(_NUMBERS_END))
    rounded = b.select(beyond, _i32(_F32_INF), rounded)
    return b.bitcast(b.or_(rounded, sign), F32)


@intrinsic
def encode_bfloat16_as(typing_context, value, add, odd):
    """float32 → bfloat16 code by a rule over 16 dropped bits; NaN → 0x7FC0 with the sign."""

    def codegen(context, b, signature, args):
        sign, magnitude = _parts(b, args[0])
        rounded = _added(b, magnitude, _narrow(b, args[1]), _narrow(b, args[2]), 16)
        code = b.lshr(rounded, _i32(16))
        nan = b.icmp_signed(">", magnitude, _i32(_F32_INF))
        code = b.select(nan, _i32(0x7FC0), code)
        return b.trunc(b.or_(code, b.lshr(sign, _i32(16))), I16)

    return types.uint16(types.float32, types.int64, types.int64), codegen


# --- transposition -------------------------------------------------------------------------------

_SIDE = 16
_STAGES = (8, 4, 2, 1)


def _interleave(low: bool, stage: int) -> list[int]:
    if low:
        return [p if not p & stage else _SIDE + (p ^ stage) for p in range(_SIDE)]
    return [(p | stage) if not p & stage else _SIDE + p for p in range(_SIDE)]


def _transpose_tile(b, rows):
    """A butterfly network of vector shuffles over 16 rows of 16 elements."""
    mask_type = ir.VectorType(I32, _SIDE)
    for stage in _STAGES:
        # rows that differ in this bit exchange the elements whose column differs in it
        nxt = list(rows)
        for k in range(_SIDE):
            if k & stage:
                continue
            for low, place in ((True, k), (False, k | stage)):
                mask = ir.Constant(mask_type, _interleave(low, stage))
                nxt[place] = b.shuffle_vector(rows[k], rows[k | stage], mask)
        rows = nxt
    return rows


@intrinsic
def transpose_tile(typing_context, source, source_pitch, target, target_pitch):
    """Transpose 16x16 uint16 between byte addresses with byte pitches, in registers."""

    def codegen(context, b, signature, args):
        vector = ir.VectorType(I16, _SIDE)

        def pointer(address, pitch, row):
            offset = b.mul(pitch, ir.Constant(I64, row))
            return b.inttoptr(b.add(address, offset), vector.as_pointer())

        rows = []
        for row in range(_SIDE):
            loaded = b.load(pointer(args[0], args[1], row))
            loaded.align = 2  # sticks of a tensor may begin anywhere that is even
            rows.append(loaded)
        for row, value in enumerate(_transpose_tile(b, rows)):
            stored = b.store(value, pointer(args[2], args[3], row))
            stored.align = 2
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), codegen
