"""DL16 codes as LLVM vectors: decoded and encoded 32 or 16 at a time.

A float32 is built from two 16-bit halves, so most of a decoding works on vectors of 16-bit lanes,
twice as many as of float32. The halves are interleaved within 128-bit lanes, and an encoding packs
within 128-bit lanes, which undoes it: arithmetic between the two needs no particular order, and
only what goes to or comes from a float32 buffer is put into the order of the elements. The codecs
of single elements in :mod:`.intrinsics` are the slow twins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import cgutils

from spyre.hw.kernels.intrinsics import F32, I16, I32
from spyre.hw.kernels.microkernel import LANES

_LANE_CODES = 8
"""16-bit codes in a 128-bit lane, within which x86 interleaves and packs."""
_MAGNITUDE, _SIGN, _NINF = 0x7FFF, 0x8000, 0x7FFF
_REBIAS = (127 - 31) << 7
"""What turns an exponent of DL16 into one of float32, in the upper half of its bits."""
_TO_INFINITY = 0x7F80 - (_NINF >> 2)
_UPPER = 0x9FFF
"""Bits of a code shifted right by two, with its sign, that go into the upper half."""
_ROUND_AND_REBIAS = (1 << 13) - (_REBIAS << 16)
_DROPPED = 14
_F32_MAGNITUDE = 0x7FFFFFFF
_X86_PACK = {
    32: ("avx512bw", "llvm.x86.avx512.packssdw.512"),
    16: ("avx2", "llvm.x86.avx2.packssdw"),
}


def _x86_pack(codes: int) -> str | None:
    """LLVM's name of the host's packing instruction; None if it or numba's target has none."""
    if numba.config.CPU_NAME or numba.config.CPU_FEATURES:
        return None
    feature, name = _X86_PACK[codes]
    return name if llvm.get_host_cpu_features().get(feature, False) else None


HOST_CODES = 2 * LANES
"""Codes of a vector on this host."""
HOST_PACK = _x86_pack(HOST_CODES)


class Codes:
    """Emits operations on vectors of ``codes`` DL16 codes, or of half as many float32.

    ``x86_pack``: LLVM's name of an instruction that packs such vectors; None: plain LLVM, slower.
    """

    def __init__(self, builder: Any, codes: int, x86_pack: str | None) -> None:
        self.b, self.codes, self.x86_pack = builder, codes, x86_pack
        self.short = ir.VectorType(I16, codes)
        self.word = ir.VectorType(I32, codes // 2)
        self.float = ir.VectorType(F32, codes // 2)

    def shorts(self, value: int) -> Any:
        """A 16-bit constant in all lanes."""
        return ir.Constant(self.short, [ir.Constant(I16, value)] * self.codes)

    def words(self, value: int) -> Any:
        """A 32-bit constant in all lanes."""
        return ir.Constant(self.word, [ir.Constant(I32, value)] * (self.codes // 2))

    def shuffle(self, first: Any, second: Any, order: Sequence[int]) -> Any:
        """Lanes of both vectors, numbered on end, in the given order."""
        kind = ir.VectorType(I32, len(order))
        mask = ir.Constant(kind, [ir.Constant(I32, place) for place in order])
        return self.b.shuffle_vector(first, second, mask)

    def load(self, kind: Any, address: Any, align: int) -> Any:
        """A vector at a byte address, ``align`` bytes aligned."""
        loaded = self.b.load(self.b.inttoptr(address, kind.as_pointer()))
        loaded.align = align
        return loaded

    def store(self, value: Any, address: Any, align: int) -> None:
        """See :meth:`load`."""
        stored = self.b.store(value, self.b.inttoptr(address, value.type.as_pointer()))
        stored.align = align

    def splat(self, address: Any) -> Any:
        """The code at ``address`` in all lanes."""
        code = self.b.load(self.b.inttoptr(address, I16.as_pointer()))
        undefined = ir.Constant(self.short, ir.Undefined)
        first = self.b.insert_element(undefined, code, ir.Constant(I32, 0))
        return self.shuffle(first, undefined, [0] * self.codes)

    def halves(self, codes: Any) -> tuple[Any, Any]:
        """Lower and upper 16 bits of the float32 values."""
        b = self.b
        magnitude = b.and_(codes, self.shorts(_MAGNITUDE))
        is_number = b.icmp_unsigned("!=", magnitude, self.shorts(_NINF))
        is_zero = b.icmp_unsigned("==", magnitude, self.shorts(0))
        rebias = b.select(is_number, self.shorts(_REBIAS), self.shorts(_TO_INFINITY))
        rebias = b.select(is_zero, self.shorts(0), rebias)
        upper = b.add(b.and_(b.ashr(codes, self.shorts(2)), self.shorts(_UPPER)), rebias)
        lower = b.select(is_number, b.shl(codes, self.shorts(14)), self.shorts(0))
        return lower, upper

    def decoded(self, codes: Any) -> list[Any]:
        """Two vectors of float32, whose elements alternate between them by half 128-bit lanes."""
        lower, upper = self.halves(codes)
        found = []
        for half in (0, _LANE_CODES // 2):
            places = [
                lane + half + i
                for lane in range(0, self.codes, _LANE_CODES)
                for i in range(_LANE_CODES // 2)
            ]
            order = [place for low in places for place in (low, self.codes + low)]
            found.append(self.b.bitcast(self.shuffle(lower, upper, order), self.float))
        return found

    def decoded_in_order(self, codes: Any) -> list[Any]:
        """Two vectors of float32: the first half of the elements, the second half."""
        lower, upper = self.halves(codes)
        half = self.codes // 2
        orders = [
            [place for low in range(start, start + half) for place in (low, self.codes + low)]
            for start in (0, half)
        ]
        return [self.b.bitcast(self.shuffle(lower, upper, order), self.float) for order in orders]

    def pack(self, first: Any, second: Any) -> Any:
        """Words to shorts with signed saturation, alternating as :meth:`decoded` takes apart."""
        b = self.b
        if self.x86_pack is not None:
            kind = ir.FunctionType(self.short, [self.word, self.word])
            function = cgutils.get_or_insert_function(b.module, kind, self.x86_pack)
            return b.call(function, [first, second])
        narrow = ir.VectorType(I16, self.codes // 2)
        halves = [b.trunc(self.clamped(words), narrow) for words in (first, second)]
        quarter = _LANE_CODES // 2
        order = [
            start + lane + i
            for lane in range(0, self.codes // 2, quarter)
            for start in (0, self.codes // 2)
            for i in range(quarter)
        ]
        return self.shuffle(halves[0], halves[1], order)

    def clamped(self, words: Any) -> Any:
        """Words within the range of 16 bits."""
        b = self.b
        for limit, sign in ((0x7FFF, ">"), (-0x8000, "<")):
            words = b.select(
                b.icmp_signed(sign, words, self.words(limit)), self.words(limit), words
            )
        return words

    def encoded(self, first: Any, second: Any) -> Any:
        """Codes of what :meth:`decoded` gives: nearest, ties away; inf and NaN 0x7FFF | sign."""
        b = self.b
        bits = [b.bitcast(values, self.word) for values in (first, second)]
        rounded = []
        for words in bits:
            magnitude = b.and_(words, self.words(_F32_MAGNITUDE))
            moved = b.add(magnitude, self.words(_ROUND_AND_REBIAS))
            rounded.append(b.ashr(moved, self.words(_DROPPED)))
        codes = self.pack(*rounded)
        zero = self.shorts(0)
        codes = b.select(b.icmp_signed(">", codes, zero), codes, zero)
        return b.or_(codes, b.and_(self.pack(*bits), self.shorts(_SIGN)))

    def encoded_in_order(self, first: Any, second: Any) -> Any:
        """Codes of what :meth:`decoded_in_order` gives."""
        quarter = _LANE_CODES // 2
        runs = self.codes // quarter
        order = [
            run * quarter + i
            for run in (*range(0, runs, 2), *range(1, runs, 2))
            for i in range(quarter)
        ]
        codes = self.encoded(first, second)
        return self.shuffle(codes, codes, order)
