"""Loops over DL16 codes, a few also over binary16, in vectors: ``loop(operands, count)``, or that
for several runs.

``operands`` is a tuple of host byte addresses, the last one's of the result; ``count`` elements, a
positive multiple of a stick's, or sticks in `emit_elementwise`. ``loop(operands, pitches, runs,
count)`` repeats it ``runs`` times, at least once, with operands moved by ``pitches`` bytes each
time. An operand that is read is the one written, or does not overlap it. Bits are those of the same
loop over :func:`.intrinsics.decode_dl16` and :func:`.intrinsics.encode_dl16`, which the tests
compare it with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spyre.hw import plan_table as tb
from spyre.hw.kernels.intrinsics import (
    F32,
    I16,
    I32,
    I64,
    LANES,
    counted_loop,
    decoded_half,
    encoded_half,
    has_feature,
    number_extreme,
)

_LANE_CODES = 8
"""16-bit codes in a 128-bit lane, within which x86 interleaves and packs."""
_MAGNITUDE, _SIGN, _NINF = 0x7FFF, 0x8000, 0x7FFF
_REBIAS = (127 - 31) << 7
"""Difference of the exponents of float32 and DL16, in the upper half of a float32's bits."""
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
    """LLVM's name of the packing instruction of the processor compiled for; None without one."""
    feature, name = _X86_PACK[codes]
    return name if has_feature(feature) else None


HOST_CODES = 2 * LANES
"""Codes of a vector on this host."""
HOST_PACK = _x86_pack(HOST_CODES)


class CodeVectors:
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

    def splat(self, address: Any, kind: Any) -> Any:
        """The code or number at ``address`` in all lanes of a vector of type ``kind``."""
        element = self.b.load(self.b.inttoptr(address, kind.element.as_pointer()))
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.b.insert_element(undefined, element, ir.Constant(I32, 0))
        return self.shuffle(first, undefined, [0] * kind.count)

    def multiply_add(self, left: Any, right: Any, addend: Any) -> Any:
        """left · right + addend of float32, rounded once on every processor."""
        kind, name = (
            ir.FunctionType(self.float, [self.float] * 3),
            f"llvm.fma.v{self.codes // 2}f32",
        )
        function = cgutils.get_or_insert_function(self.b.module, kind, name)
        return self.b.call(function, [left, right, addend])

    def halves(self, codes: Any, zeros: bool, infinities: bool) -> tuple[Any, Any]:
        """Lower and upper 16 bits of the float32 values. Fewer instructions decode zero as 2^-31,
        without ``zeros``, and NINF as 2^33 - 2^24, without ``infinities``.
        """
        b = self.b
        magnitude = b.and_(codes, self.shorts(_MAGNITUDE))
        rebias, lower = self.shorts(_REBIAS), b.shl(codes, self.shorts(14))
        if infinities:
            is_number = b.icmp_unsigned("!=", magnitude, self.shorts(_NINF))
            rebias = b.select(is_number, rebias, self.shorts(_TO_INFINITY))
            lower = b.select(is_number, lower, self.shorts(0))
        if zeros:
            is_zero = b.icmp_unsigned("==", magnitude, self.shorts(0))
            rebias = b.select(is_zero, self.shorts(0), rebias)
        # a shift by two leaves three copies of the sign: two are masked, the exponent grows there
        upper = b.add(b.and_(b.ashr(codes, self.shorts(2)), self.shorts(_UPPER)), rebias)
        return lower, upper

    def decoded(self, codes: Any, zeros: bool = True, infinities: bool = True) -> list[Any]:
        """Two vectors of float32, whose elements alternate between them by half 128-bit lanes."""
        lower, upper = self.halves(codes, zeros, infinities)
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
        lower, upper = self.halves(codes, True, True)
        half = self.codes // 2
        orders = [
            [place for low in range(start, start + half) for place in (low, self.codes + low)]
            for start in (0, half)
        ]
        return [self.b.bitcast(self.shuffle(lower, upper, order), self.float) for order in orders]

    def pack(self, first: Any, second: Any) -> Any:
        """Words to shorts with signed saturation, elements alternating as :meth:`decoded` gives."""
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

    def encoded(self, first: Any, second: Any, signs: bool = True) -> Any:
        """Codes of float32 in the order of :meth:`decoded`, to nearest, ties away from zero;
        infinity and NaN become 0x7FFF | sign. Without ``signs`` no number has one.
        """
        b = self.b
        bits = [b.bitcast(values, self.word) for values in (first, second)]
        rounded = []
        for words in bits:
            magnitude = b.and_(words, self.words(_F32_MAGNITUDE)) if signs else words
            moved = b.add(magnitude, self.words(_ROUND_AND_REBIAS))
            rounded.append(b.ashr(moved, self.words(_DROPPED)))
        # signed saturation makes everything beyond the largest code NINF, below zero is zero
        codes = self.pack(*rounded)
        zero = self.shorts(0)
        codes = b.select(b.icmp_signed(">", codes, zero), codes, zero)
        return b.or_(codes, b.and_(self.pack(*bits), self.shorts(_SIGN))) if signs else codes

    def encoded_in_order(self, first: Any, second: Any) -> Any:
        """Codes of float32 in the order of :meth:`decoded_in_order`."""
        quarter = _LANE_CODES // 2
        runs = self.codes // quarter
        order = [
            run * quarter + i
            for run in (*range(0, runs, 2), *range(1, runs, 2))
            for i in range(quarter)
        ]
        codes = self.encoded(first, second)
        return self.shuffle(codes, codes, order)

    def alternating(self, first: Any, second: Any) -> list[Any]:
        """Reorder float32 from the order of :meth:`decoded_in_order` to that of :meth:`decoded`."""
        quarter, half = _LANE_CODES // 2, self.codes // 2
        runs = [range(start, start + quarter) for start in range(0, self.codes, quarter)]
        orders = [[i for run in runs[kind::2] for i in run] for kind in (0, 1)]
        assert len(orders[0]) == half
        return [self.shuffle(first, second, order) for order in orders]

    def in_order(self, first: Any, second: Any) -> list[Any]:
        """Reorder float32 from the order of :meth:`decoded` to that of :meth:`decoded_in_order`."""
        quarter, half = _LANE_CODES // 2, self.codes // 2
        places = [
            kind * half + start + i
            for start in range(0, half, quarter)
            for kind in (0, 1)
            for i in range(quarter)
        ]
        return [self.shuffle(first, second, order) for order in (places[:half], places[half:])]


class HalfVectors(CodeVectors):
    """Emits loops over codes of binary16, whose elements stay in order."""

    def decoded(self, codes: Any, zeros: bool = True, infinities: bool = True) -> list[Any]:
        """Two vectors of float32: the first half of the elements, the second half."""
        half = self.codes // 2
        orders = [range(start, start + half) for start in (0, half)]
        return [decoded_half(self.b, self.shuffle(codes, codes, order)) for order in orders]

    def encoded(self, first: Any, second: Any, signs: bool = True) -> Any:
        """Codes of float32, to nearest, ties to even."""
        low, high = (encoded_half(self.b, values) for values in (first, second))
        return self.shuffle(low, high, range(self.codes))

    decoded_in_order, encoded_in_order = decoded, encoded

    def alternating(self, first: Any, second: Any) -> list[Any]:
        """Both vectors, which are in the order of :meth:`decoded`."""
        return [first, second]

    in_order = alternating


_CODE_BYTES, _FLOAT_BYTES = 2, 4
_STICK = 64
_AHEAD_BYTES = 512
"""How far ahead of a loop over several runs their codes are fetched into the cache."""
_ROWS_AHEAD = 64
"""Rows of a stick that are fetched ahead of a product with one row."""
Emit = Callable[[CodeVectors, Sequence[Any], Any], None]
"""Emits a loop over operands and a count."""
IN_STEP = 4
"""Vectors of codes of an iteration, whose computations do not depend on each other: this hides the
latency of each. They are a stick of AVX2's vectors, two of AVX-512's.
"""
Operation = Callable[..., Any]
"""Emits an operation on vectors of codes: of the emitter and a sequence of vectors per operand."""


def make(
    emit: Emit,
    codes: int = HOST_CODES,
    pack: str | None = HOST_PACK,
    vectors: type[CodeVectors] = CodeVectors,
) -> Any:
    """The intrinsic of the loop ``emit`` writes, by default in vectors of the host's width."""

    @intrinsic
    def loop(typing_context, operands, count):
        def codegen(context, builder, signature, args):
            emit(vectors(builder, codes, pack), cgutils.unpack_tuple(builder, args[0]), args[1])
            return context.get_dummy_value()

        return types.void(operands, types.int64), codegen

    return loop


def make_choice(
    emits: Mapping[Any, Emit], codes: int = HOST_CODES, pack: str | None = HOST_PACK
) -> Any:
    """The intrinsic of several loops: ``loop(number, operands, pitches, runs, count)`` runs the one
    of that number; for any other number that of None, or it does nothing.
    """

    @intrinsic
    def loop(typing_context, number, operands, pitches, runs, count):
        def codegen(context, builder, signature, args):
            emitter = CodeVectors(builder, codes, pack)
            done = builder.append_basic_block("chosen_done")
            blocks = {key: builder.append_basic_block("chosen") for key in emits}
            switch = builder.switch(args[0], blocks.get(None, done))
            for key, emit in emits.items():
                if key is not None:
                    switch.add_case(ir.Constant(I64, key), blocks[key])
                builder.position_at_end(blocks[key])
                _emit_runs(emitter, emit, *args[1:])
                builder.branch(done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        kinds = (types.int64, operands, pitches, types.int64, types.int64)
        return types.void(*kinds), codegen

    return loop


def _emit_runs(
    codes: CodeVectors, emit: Emit, operands: Any, pitches: Any, runs: Any, count: Any
) -> None:
    b = codes.b
    starts, steps = (cgutils.unpack_tuple(b, given) for given in (operands, pitches))

    def one(run: Any) -> None:
        pairs = zip(starts, steps, strict=True)
        emit(codes, [b.add(start, b.mul(run, step)) for start, step in pairs], count)

    _repeat(codes, runs, 1, one)


def _repeat(codes: CodeVectors, count: Any, step: int, body: Callable[[Any], None]) -> None:
    """``body`` at element 0, step, ... below ``count``."""

    def one(element: Any, _: Sequence[Any]) -> Sequence[Any]:
        body(element)
        return ()

    counted_loop(codes.b, count, step, (), one)


def _at(codes: CodeVectors, address: Any, element: Any, element_bytes: int) -> Any:
    return codes.b.add(address, codes.b.mul(element, ir.Constant(I64, element_bytes)))


def _load(codes: CodeVectors, address: Any, element: Any) -> Any:
    return codes.load(codes.short, _at(codes, address, element, _CODE_BYTES), _CODE_BYTES)


def _store(codes: CodeVectors, value: Any, address: Any, element: Any) -> None:
    codes.store(value, _at(codes, address, element, _CODE_BYTES), _CODE_BYTES)


def _float_places(codes: CodeVectors, address: Any, element: Any) -> list[Any]:
    """Addresses of the two vectors of float32 from ``element`` on."""
    first = _at(codes, address, element, _FLOAT_BYTES)
    return [first, codes.b.add(first, ir.Constant(I64, codes.codes // 2 * _FLOAT_BYTES))]


def _each(operation: Callable[..., Any]) -> Operation:
    """The operation on vectors of codes that makes every one by itself."""

    @wraps(operation)
    def over_all(*given: Any) -> list[Any]:
        first = next(k for k, x in enumerate(given) if isinstance(x, CodeVectors)) + 1
        return [operation(*given[:first], *x) for x in zip(*given[first:], strict=True)]

    return over_all


def arithmetic(name: str, codes: CodeVectors, left: Any, right: Any) -> list[Any]:
    """x op y of vectors of codes; ``name``: LLVM's. A vector that is several times in ``right`` is
    one number.

    A quotient by one number is a product with its reciprocal: the quotient of significands of ten
    bits is at least 2^-21 of it away from where the code changes, the product 2^-23 from the
    quotient.
    """
    b, divisors = codes.b, {id(y): codes.decoded(y) for y in right}
    if name == "fdiv" and len(divisors) < len(right):
        ones = ir.Constant(codes.float, [ir.Constant(F32, 1.0)] * (codes.codes // 2))
        name, divisors = "fmul", {y: [b.fdiv(ones, x[0])] * 2 for y, x in divisors.items()}
    found = []
    for x, y in zip(left, right, strict=True):
        pairs = zip(codes.decoded(x), divisors[id(y)], strict=True)
        found.append(codes.encoded(*[getattr(b, name)(p, q) for p, q in pairs]))
    return found


@_each
def extreme(comparison: str, codes: CodeVectors, x: Any, y: Any) -> Any:
    """Larger (">") or smaller ("<") of two vectors of codes, compared as the numbers are."""
    b = codes.b
    left, right = (_order_keys(codes, operand) for operand in (x, y))
    return _order_keys(codes, b.select(b.icmp_signed(comparison, left, right), left, right))


def _order_keys(codes: CodeVectors, x: Any) -> Any:
    """Shorts that compare as the numbers do; twice, they are the codes again."""
    b = codes.b
    return b.xor(x, b.and_(b.ashr(x, codes.shorts(15)), codes.shorts(0x7FFF)))


@_each
def relu(codes: CodeVectors, x: Any) -> Any:
    """Numbers above 0, else 0."""
    zero = codes.shorts(0)
    return codes.b.select(codes.b.icmp_signed(">", x, zero), x, zero)


@_each
def negative(codes: CodeVectors, x: Any) -> Any:
    """-x."""
    return codes.b.xor(x, codes.shorts(0x8000))


@_each
def absolute(codes: CodeVectors, x: Any) -> Any:
    """|x|."""
    return codes.b.and_(x, codes.shorts(0x7FFF))


@_each
def where(codes: CodeVectors, condition: Any, yes: Any, no: Any) -> Any:
    """``yes`` where the condition is not 0, else ``no``."""
    b = codes.b
    is_zero = b.icmp_unsigned("==", b.and_(condition, codes.shorts(0x7FFF)), codes.shorts(0))
    return b.select(is_zero, no, yes)


def emit_elementwise(
    lanes: int, operation: Operation, codes: CodeVectors, operands: Sequence[Any], count: Any
) -> None:
    """z[i] = op(x[i], ...) on ``count`` sticks of codes, `IN_STEP` vectors at a time; operand k is
    one code per stick if ``lanes`` has bit k. Operands: all addresses, then of each the bytes from
    stick to stick.
    """
    b, half = codes.b, len(operands) // 2
    places = [ir.Constant(I64, k) for k in range(0, _STICK, codes.codes)]
    step = max(IN_STEP * codes.codes // _STICK, 1)

    def body(stick: Any) -> None:
        rows = []
        for k in range(step):
            index = b.add(stick, ir.Constant(I64, k))
            if k:  # the last stick of an odd number of them is computed twice
                index = b.select(b.icmp_signed("<", index, count), index, stick)
            pairs = zip(operands[:half], operands[half:], strict=True)
            rows.append([b.add(address, b.mul(index, pitch)) for address, pitch in pairs])
        columns = [
            [
                value
                for row in rows
                for value in (
                    [codes.splat(row[k], codes.short)] * len(places)
                    if lanes >> k & 1
                    else [_load(codes, row[k], place) for place in places]
                )
            ]
            for k in range(half - 1)
        ]
        targets = [(row[-1], place) for row in rows for place in places]
        for value, target in zip(operation(codes, *columns), targets, strict=True):
            _store(codes, value, *target)

    _repeat(codes, count, step, body)


def emit_decode(codes: CodeVectors, operands: Sequence[Any], count: Any) -> None:
    """target[i] = float32 of source[i]."""
    source, target = operands

    def body(element: Any) -> None:
        values = codes.decoded_in_order(_load(codes, source, element))
        for value, place in zip(values, _float_places(codes, target, element), strict=True):
            codes.store(value, place, _FLOAT_BYTES)

    _repeat(codes, count, codes.codes, body)


def emit_encode(codes: CodeVectors, operands: Sequence[Any], count: Any) -> None:
    """target[i] = code of the float32 source[i]."""
    source, target = operands

    def body(element: Any) -> None:
        places = _float_places(codes, source, element)
        values = [codes.load(codes.float, place, _FLOAT_BYTES) for place in places]
        _store(codes, codes.encoded_in_order(*values), target, element)

    _repeat(codes, count, codes.codes, body)


def _places_of_sticks(codes: CodeVectors, operands: Sequence[Any], element_bytes: int) -> list[Any]:
    """Addresses of the vectors of one stick of codes, or of two of float32."""
    elements = range(0, _STICK // len(operands), codes.codes // len(operands))
    return [_at(codes, x, ir.Constant(I64, k), element_bytes) for x in operands for k in elements]


def emit_widen(alternates: bool, codes: CodeVectors, operands: Sequence[Any], count: Any) -> None:
    """float32 of one stick in two; operands codes, both sticks. ``alternates``: of every eight
    codes four go to each, else all go in order.
    """
    decoded = codes.decoded if alternates else codes.decoded_in_order
    places = _places_of_sticks(codes, operands[:1], _CODE_BYTES)
    found = [x for at in places for x in decoded(codes.load(codes.short, at, _CODE_BYTES))]
    if alternates:
        found = found[::2] + found[1::2]
    for value, at in zip(found, _places_of_sticks(codes, operands[1:], _FLOAT_BYTES), strict=True):
        codes.store(value, at, _FLOAT_BYTES)


def emit_narrow(alternates: bool, codes: CodeVectors, operands: Sequence[Any], count: Any) -> None:
    """The stick of codes that `emit_widen` makes two sticks of; operands these, the codes."""
    places = _places_of_sticks(codes, operands[:2], _FLOAT_BYTES)
    values = [codes.load(codes.float, at, _FLOAT_BYTES) for at in places]
    halves = values[: len(values) // 2], values[len(values) // 2 :]
    pairs = zip(*(halves if alternates else (values[::2], values[1::2])), strict=True)
    encoded = codes.encoded if alternates else codes.encoded_in_order
    found = [encoded(*pair) for pair in pairs]
    for value, at in zip(found, _places_of_sticks(codes, operands[2:], _CODE_BYTES), strict=True):
        codes.store(value, at, _CODE_BYTES)


def emit_copy(codes: CodeVectors, operands: Sequence[Any], count: Any) -> None:
    """Copy one stick; operands source, target."""
    source, target = (_places_of_sticks(codes, [x], _CODE_BYTES) for x in operands)
    found = [codes.load(codes.short, at, _CODE_BYTES) for at in source]
    for value, at in zip(found, target, strict=True):
        codes.store(value, at, _CODE_BYTES)


def emit_spread(kind: str, codes: CodeVectors, operands: Sequence[Any], count: Any) -> None:
    """The element at the first operand, in all of a stick at the second; ``kind``: of vectors."""
    value = codes.splat(operands[0], getattr(codes, kind))
    for at in _places_of_sticks(codes, operands[1:], _CODE_BYTES):
        codes.store(value, at, _CODE_BYTES)


def _prefetch(codes: CodeVectors, address: Any) -> None:
    """Fetch the line at an address, which need not be valid, into the second cache."""
    b, byte = codes.b, ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    fetch = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    b.call(fetch, [b.inttoptr(address, byte), *(ir.Constant(I32, hint) for hint in (0, 3, 1))])


def _prefetched_runs(
    codes: CodeVectors, operands: Sequence[Any], element: Any, count: Any
) -> list[Any]:
    """The vectors at ``element`` of four runs of ``count`` codes: operands are the first one's
    address, and the bytes to the next one. What follows in these and the next four is fetched.
    """
    b, (first, pitch_bytes) = codes.b, operands
    run_bytes = b.mul(count, ir.Constant(I64, _CODE_BYTES))
    ahead = ir.Constant(I64, _AHEAD_BYTES)
    ahead = b.select(b.icmp_signed("<", ahead, run_bytes), ahead, run_bytes)
    beyond = b.icmp_signed(">=", _at(codes, ahead, element, _CODE_BYTES), run_bytes)
    following = b.sub(b.shl(pitch_bytes, ir.Constant(I64, 2)), run_bytes)
    ahead = b.add(ahead, b.select(beyond, following, ir.Constant(I64, 0)))
    place, found = _at(codes, first, element, _CODE_BYTES), []
    for _ in range(4):
        found.append(codes.load(codes.short, place, _CODE_BYTES))
        _prefetch(codes, b.add(place, ahead))
        place = b.add(place, pitch_bytes)
    return found


def emit_add_four(codes: CodeVectors, operands: Sequence[Any], count: Any) -> None:
    """target[i] += (a[i] + b[i]) + (c[i] + d[i]): codes of `_prefetched_runs` to float32."""
    *sources, target = operands

    def body(element: Any) -> None:
        b = codes.b
        runs = [codes.decoded(x) for x in _prefetched_runs(codes, sources, element, count)]
        totals = [b.fadd(b.fadd(p, q), b.fadd(r, s)) for p, q, r, s in zip(*runs, strict=True)]
        places = _float_places(codes, target, element)
        # once here instead of once for each run
        for place, total in zip(places, codes.in_order(*totals), strict=True):
            old = codes.load(codes.float, place, _FLOAT_BYTES)
            codes.store(b.fadd(old, total), place, _FLOAT_BYTES)

    _repeat(codes, count, codes.codes, body)


def emit_extreme_four(
    comparison: str, codes: CodeVectors, operands: Sequence[Any], count: Any
) -> None:
    """keys[i] = the extreme (see `extreme`) of itself and the keys of four codes."""
    *sources, target = operands

    def body(element: Any) -> None:
        b = codes.b
        found = _load(codes, target, element)
        for x in _prefetched_runs(codes, sources, element, count):
            key = _order_keys(codes, x)
            found = b.select(b.icmp_signed(comparison, key, found), key, found)
        _store(codes, found, target, element)

    _repeat(codes, count, codes.codes, body)


def emit_combine_lanes(
    combine: Callable[..., Any], codes: CodeVectors, operands: Sequence[Any], count: Any
) -> None:
    """Replace all lanes of each stick of float32 by the combination of its halves, the halves of
    that, and so on; ``combine``: of the builder, the upper and the lower half.
    """
    (address,) = operands
    kind = ir.VectorType(F32, _STICK)

    def body(element: Any) -> None:
        place = _at(codes, address, element, _FLOAT_BYTES)
        values, half = codes.load(kind, place, _FLOAT_BYTES), _STICK // 2
        while half > 0:
            upper, lower = range(half, 2 * half), range(half)
            values = combine(codes.b, *(codes.shuffle(values, values, h) for h in (upper, lower)))
            half //= 2
        codes.store(codes.shuffle(values, values, [0] * _STICK), place, _FLOAT_BYTES)

    _repeat(codes, count, _STICK, body)


def emit_row_product(codes: CodeVectors, operands: Sequence[Any], count: Any) -> None:
    """c[j] += a[k] · b[k, j] for ``count`` rows of a stick of columns, in order of k, rounded once
    each. Operands: float32 a, codes b, bytes from a row of b to the next one, float32 c.

    c stays in registers, in the order in which codes are decoded cheaply.
    """
    b, (factors, rows, pitch_bytes, sums) = codes.b, operands
    pairs = [
        _float_places(codes, sums, ir.Constant(I64, start))
        for start in range(0, _STICK, codes.codes)
    ]
    initial = [
        value
        for pair in pairs
        for value in codes.alternating(*(codes.load(codes.float, at, _FLOAT_BYTES) for at in pair))
    ]

    def add_row(k: Any, totals: Sequence[Any]) -> list[Any]:
        left = codes.splat(_at(codes, factors, k, _FLOAT_BYTES), codes.float)
        row = b.add(rows, b.mul(k, pitch_bytes))
        for line in range(0, _CODE_BYTES * _STICK, 64):
            following = b.mul(pitch_bytes, ir.Constant(I64, _ROWS_AHEAD))
            _prefetch(codes, b.add(b.add(row, following), ir.Constant(I64, line)))
        right = [
            value
            for start in range(0, _STICK, codes.codes)
            for value in codes.decoded(_load(codes, row, ir.Constant(I64, start)))
        ]
        return [codes.multiply_add(left, r, t) for r, t in zip(right, totals, strict=True)]

    updated = counted_loop(b, count, 1, initial, add_row)
    for n, pair in enumerate(pairs):
        for value, at in zip(codes.in_order(*updated[2 * n : 2 * n + 2]), pair, strict=True):
            codes.store(value, at, _FLOAT_BYTES)


def _of_halves(emit: Emit, codes: CodeVectors, operands: Sequence[Any], count: Any) -> None:
    emit(HalfVectors(codes.b, codes.codes, None), operands, count)


OPERATIONS: dict[str, Operation] = {
    "add": partial(arithmetic, "fadd"),
    "subtract": partial(arithmetic, "fsub"),
    "multiply": partial(arithmetic, "fmul"),
    "divide": partial(arithmetic, "fdiv"),
    "maximum": partial(extreme, ">"),
    "minimum": partial(extreme, "<"),
    "negative": negative,
    "absolute": absolute,
    "relu": relu,
    "where": where,
}
"""Operations on vectors of codes, by the ``code_form`` of the operation table."""
stick_loops = make_choice(
    {
        tb.COPY: emit_copy,
        tb.SPREAD_CODE: partial(emit_spread, "short"),
        tb.SPREAD_WORD: partial(emit_spread, "float"),
    }
)
decode_runs, encode_runs, row_products = (
    make_choice({None: emit, tb.HALF: partial(_of_halves, emit)})
    for emit in (emit_decode, emit_encode, emit_row_product)
)
"""Loops by the FORMAT value of the 16-bit operand: binary16 or one of DL16."""
add_four = make(emit_add_four)
largest_of_four = make(partial(emit_extreme_four, ">"))
smallest_of_four = make(partial(emit_extreme_four, "<"))
add_lanes = make(partial(emit_combine_lanes, lambda b, upper, lower: b.fadd(lower, upper)))
largest_lane = make(partial(emit_combine_lanes, partial(number_extreme, ">", "and_")))
smallest_lane = make(partial(emit_combine_lanes, partial(number_extreme, "<", "or_")))
