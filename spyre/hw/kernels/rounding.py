"""Rounding by rule: the codecs for everything that is not "DL16, ties away from zero".

A rule is two integers. ``add`` is added to the magnitude's bits before the low ones are dropped,
``odd`` (0 or 1) is added too where the last bit that stays is 1: half and 0 round ties away, half
minus one and 1 to even, 0 and 0 towards zero. Twin: `spyre.dtypes.codecs`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spyre.hw.kernels.intrinsics import F32, I16, I32

DROPPED = 14
"""Fraction bits of float32 that DL16 lacks."""
ROUND_ADD = (0x2000, 0, 0, 0, 0, 0x1FFF)
ROUND_ODD = (0, 0, 0, 0, 0, 1)
"""The rule of each DL16 FORMAT code: DL16, (HALF, FP32, INT32), DL16_TRUNC, DL16_EVEN."""
LARGEST = 0x7FFF
"""Largest magnitude code of numbers: NINF, or 0x7FFE where numbers saturate."""

_INFINITY = 0x7F800000
_REBIASED = (127 - 31) << 9
_ZERO_END = ((127 - 31) << 23) + (1 << DROPPED)
"""Bits of the smallest DL16 number."""
_NUMBERS_END = ((127 - 31) << 23) + (0x7FFF << DROPPED)
"""Bits a NINF would have as a number."""


def _i32(value: int) -> Any:
    return ir.Constant(I32, value)


def _narrow(b: Any, value: Any) -> Any:
    return b.trunc(value, I32)


def _added(b: Any, magnitude: Any, add: Any, odd: Any, dropped: int) -> Any:
    """Magnitude bits plus what the rule adds."""
    last = b.and_(b.lshr(magnitude, _i32(dropped)), odd)
    return b.add(b.add(magnitude, add), last)


def _parts(b: Any, value: Any) -> tuple[Any, Any]:
    """Sign bit and magnitude bits of a float32."""
    bits = b.bitcast(value, I32)
    return b.and_(bits, _i32(-0x80000000)), b.and_(bits, _i32(0x7FFFFFFF))


@intrinsic
def encode_dl16_as(typing_context, value, add, odd, largest):
    """float32 → DL16 code by a rule; inf and NaN → 0x7FFF, beyond it ``largest``, with the sign."""

    def codegen(context, b, signature, args):
        sign, magnitude = _parts(b, args[0])
        add, odd, largest = (_narrow(b, a) for a in args[1:])
        code = b.lshr(_added(b, magnitude, add, odd, DROPPED), _i32(DROPPED))
        code = b.sub(code, _i32(_REBIASED))
        code = b.select(b.icmp_signed("<", code, _i32(0)), _i32(0), code)
        code = b.select(b.icmp_signed(">", code, largest), largest, code)
        special = b.icmp_signed(">=", magnitude, _i32(_INFINITY))
        code = b.select(special, _i32(LARGEST), code)
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
    rounded = _added(b, magnitude, _narrow(b, add), _narrow(b, odd), DROPPED)
    rounded = b.and_(rounded, _i32(-1 << DROPPED))
    rounded = b.select(b.icmp_unsigned("<", rounded, _i32(_ZERO_END)), _i32(0), rounded)
    beyond = b.icmp_unsigned(">=", rounded, _i32(_NUMBERS_END))
    rounded = b.select(beyond, _i32(_INFINITY), rounded)
    return b.bitcast(b.or_(rounded, sign), F32)


@intrinsic
def encode_bfloat16_as(typing_context, value, add, odd):
    """float32 → bfloat16 code by a rule over 16 dropped bits; NaN → 0x7FC0 with the sign."""

    def codegen(context, b, signature, args):
        sign, magnitude = _parts(b, args[0])
        rounded = _added(b, magnitude, _narrow(b, args[1]), _narrow(b, args[2]), 16)
        code = b.lshr(rounded, _i32(16))
        nan = b.icmp_signed(">", magnitude, _i32(_INFINITY))
        code = b.select(nan, _i32(0x7FC0), code)
        return b.trunc(b.or_(code, b.lshr(sign, _i32(16))), I16)

    return types.uint16(types.float32, types.int64, types.int64), codegen
