"""Loops over DL16 codes in vectors: ``loop(operands, count)``, or that for several runs.

``operands`` is a tuple of host byte addresses, the last one's of the result; ``count`` elements, a
positive multiple of a stick's. ``loop(operands, pitches, runs, count)`` repeats it ``runs`` times,
at least once, with operands moved by ``pitches`` bytes each time. What is read and what is written
is equal or apart. Bits are those of the same loop over :func:`.intrinsics.decode_dl16` and
:func:`.intrinsics.encode_dl16`, its twin in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from spyre.hw.kernels.intrinsics import I64
from spyre.hw.kernels.vector_codecs import HOST_CODES, HOST_PACK, Codes

_CODE_BYTES, _FLOAT_BYTES = 2, 4
_STICK = 64
Emit = Callable[[Codes, Sequence[Any], Any], None]
"""Emits a loop over operands and a count."""
Operation = Callable[..., Any]
"""Emits an operation on vectors of codes: of the emitter and its operands."""


def make(emit: Emit, codes: int = HOST_CODES, pack: str | None = HOST_PACK) -> Any:
    """The intrinsic of the loop ``emit`` writes; the host's vectors unless told otherwise."""

    @intrinsic
    def loop(typing_context, operands, count):
        def codegen(context, builder, signature, args):
            emit(Codes(builder, codes, pack), cgutils.unpack_tuple(builder, args[0]), args[1])
            return context.get_dummy_value()

        return types.void(operands, types.int64), codegen

    return loop


def make_runs(emit: Emit, codes: int = HOST_CODES, pack: str | None = HOST_PACK) -> Any:
    """:func:`make` for several runs."""

    @intrinsic
    def loop(typing_context, operands, pitches, runs, count):
        def codegen(context, builder, signature, args):
            emitter = Codes(builder, codes, pack)
            starts, steps = (cgutils.unpack_tuple(builder, given) for given in args[:2])

            def one(run: Any) -> None:
                moved = [
                    builder.add(start, builder.mul(run, step))
                    for start, step in zip(starts, steps, strict=True)
                ]
                emit(emitter, moved, args[3])

            _repeat(emitter, args[2], 1, one)
            return context.get_dummy_value()

        return types.void(operands, pitches, types.int64, types.int64), codegen

    return loop


def _repeat(codes: Codes, count: Any, step: int, body: Callable[[Any], None]) -> None:
    """``body`` at element 0, step, ... below ``count``."""
    b = codes.b
    before, function = b.block, b.function
    head, done = function.append_basic_block("codes"), function.append_basic_block("codes_done")
    b.branch(head)
    b.position_at_end(head)
    element = b.phi(I64)
    element.add_incoming(ir.Constant(I64, 0), before)
    body(element)
    following = b.add(element, ir.Constant(I64, step))
    element.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, count), head, done)
    b.position_at_end(done)


def _at(codes: Codes, address: Any, element: Any, element_bytes: int) -> Any:
    return codes.b.add(address, codes.b.mul(element, ir.Constant(I64, element_bytes)))


def _load(codes: Codes, address: Any, element: Any) -> Any:
    return codes.load(codes.short, _at(codes, address, element, _CODE_BYTES), _CODE_BYTES)


def _store(codes: Codes, value: Any, address: Any, element: Any) -> None:
    codes.store(value, _at(codes, address, element, _CODE_BYTES), _CODE_BYTES)


def _float_places(codes: Codes, address: Any, element: Any) -> list[Any]:
    """Addresses of the two vectors of float32 from ``element`` on."""
    first = _at(codes, address, element, _FLOAT_BYTES)
    return [first, codes.b.add(first, ir.Constant(I64, codes.codes // 2 * _FLOAT_BYTES))]


def arithmetic(name: str, codes: Codes, x: Any, y: Any) -> Any:
    """x op y of two vectors of codes; ``name``: LLVM's."""
    values = zip(codes.decoded(x), codes.decoded(y), strict=True)
    return codes.encoded(*[getattr(codes.b, name)(p, q) for p, q in values])


def extreme(comparison: str, codes: Codes, x: Any, y: Any) -> Any:
    """Larger (">") or smaller ("<") of two vectors of codes, compared as the numbers are."""
    b = codes.b
    left, right = (_order_keys(codes, operand) for operand in (x, y))
    return _order_keys(codes, b.select(b.icmp_signed(comparison, left, right), left, right))


def _order_keys(codes: Codes, x: Any) -> Any:
    """Shorts that compare as the numbers do; twice, they are the codes again."""
    b = codes.b
    return b.xor(x, b.and_(b.ashr(x, codes.shorts(15)), codes.shorts(0x7FFF)))


def relu(codes: Codes, x: Any) -> Any:
    """Numbers above 0, else 0."""
    zero = codes.shorts(0)
    return codes.b.select(codes.b.icmp_signed(">", x, zero), x, zero)


def negative(codes: Codes, x: Any) -> Any:
    """-x."""
    return codes.b.xor(x, codes.shorts(0x8000))


def absolute(codes: Codes, x: Any) -> Any:
    """|x|."""
    return codes.b.and_(x, codes.shorts(0x7FFF))


def where(codes: Codes, condition: Any, yes: Any, no: Any) -> Any:
    """``yes`` where the condition is not 0, else ``no``."""
    b = codes.b
    is_zero = b.icmp_unsigned("==", b.and_(condition, codes.shorts(0x7FFF)), codes.shorts(0))
    return b.select(is_zero, no, yes)


def emit_elementwise(
    operation: Operation, codes: Codes, operands: Sequence[Any], count: Any
) -> None:
    """z[i] = op(x[i], ...) on codes."""
    *inputs, z = operands

    def body(element: Any) -> None:
        loaded = [_load(codes, x, element) for x in inputs]
        _store(codes, operation(codes, *loaded), z, element)

    _repeat(codes, count, codes.codes, body)


def emit_lanes(operation: Operation, codes: Codes, operands: Sequence[Any], count: Any) -> None:
    """z[i] = op(x[i], y of the stick) on codes; operands x, y, bytes from y to the next one, z."""
    x, y, pitch_bytes, z = operands

    def body(element: Any) -> None:
        b = codes.b
        stick = b.lshr(element, ir.Constant(I64, _STICK.bit_length() - 1))
        right = codes.splat(b.add(y, b.mul(stick, pitch_bytes)))
        for start in range(0, _STICK, codes.codes):
            at = b.add(element, ir.Constant(I64, start))
            _store(codes, operation(codes, _load(codes, x, at), right), z, at)

    _repeat(codes, count, _STICK, body)


def emit_decode(codes: Codes, operands: Sequence[Any], count: Any) -> None:
    """target[i] = float32 of source[i]."""
    source, target = operands

    def body(element: Any) -> None:
        values = codes.decoded_in_order(_load(codes, source, element))
        for value, place in zip(values, _float_places(codes, target, element), strict=True):
            codes.store(value, place, _FLOAT_BYTES)

    _repeat(codes, count, codes.codes, body)


def emit_encode(codes: Codes, operands: Sequence[Any], count: Any) -> None:
    """target[i] = code of the float32 source[i]."""
    source, target = operands

    def body(element: Any) -> None:
        places = _float_places(codes, source, element)
        values = [codes.load(codes.float, place, _FLOAT_BYTES) for place in places]
        _store(codes, codes.encoded_in_order(*values), target, element)

    _repeat(codes, count, codes.codes, body)


def emit_add_four(codes: Codes, operands: Sequence[Any], count: Any) -> None:
    """target[i] += (a[i] + b[i]) + (c[i] + d[i]): codes to float32."""
    *sources, target = operands

    def body(element: Any) -> None:
        b = codes.b
        runs = [codes.decoded_in_order(_load(codes, a, element)) for a in sources]
        places = _float_places(codes, target, element)
        for place, p, q, r, s in zip(places, *runs, strict=True):
            total = b.fadd(b.fadd(p, q), b.fadd(r, s))
            old = codes.load(codes.float, place, _FLOAT_BYTES)
            codes.store(b.fadd(old, total), place, _FLOAT_BYTES)

    _repeat(codes, count, codes.codes, body)


_ARITHMETIC = [partial(arithmetic, name) for name in ("fadd", "fsub", "fmul", "fdiv")]
_EXTREMES = [partial(extreme, comparison) for comparison in "><"]
_BINARY = [*_ARITHMETIC, *_EXTREMES]
add_codes, subtract_codes, multiply_codes, divide_codes, maximum_codes, minimum_codes = (
    make_runs(partial(emit_elementwise, operation)) for operation in _BINARY
)
add_lanes, subtract_lanes, multiply_lanes, divide_lanes, maximum_lanes, minimum_lanes = (
    make_runs(partial(emit_lanes, operation)) for operation in _BINARY
)
relu_codes, negate_codes, absolute_codes, where_codes = (
    make_runs(partial(emit_elementwise, op)) for op in (relu, negative, absolute, where)
)
decode_codes, encode_codes, add_four = make(emit_decode), make(emit_encode), make(emit_add_four)
