"""Loops over DL16 codes in vectors: ``loop(addresses, count)``.

``addresses`` is a tuple of host byte addresses, the last one's of the result; ``count`` elements,
a positive multiple of HOST_CODES, as a stick is. Operands are equal or apart. Bits are those of the
same loop over :func:`.intrinsics.decode_dl16` and :func:`.intrinsics.encode_dl16`, its twin in the
tests.
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
Emit = Callable[[Codes, Sequence[Any], Any], None]
"""Emits a loop over addresses and a count."""


def make(emit: Emit, codes: int = HOST_CODES, pack: str | None = HOST_PACK) -> Any:
    """The intrinsic of the loop ``emit`` writes; the host's vectors unless told otherwise."""

    @intrinsic
    def loop(typing_context, addresses, count):
        def codegen(context, builder, signature, args):
            emit(Codes(builder, codes, pack), cgutils.unpack_tuple(builder, args[0]), args[1])
            return context.get_dummy_value()

        return types.void(addresses, types.int64), codegen

    return loop


def _repeat(codes: Codes, count: Any, body: Callable[[Any], None]) -> None:
    """``body`` at element 0, codes.codes, ... below ``count``."""
    b = codes.b
    before, function = b.block, b.function
    head, done = function.append_basic_block("codes"), function.append_basic_block("codes_done")
    b.branch(head)
    b.position_at_end(head)
    element = b.phi(I64)
    element.add_incoming(ir.Constant(I64, 0), before)
    body(element)
    following = b.add(element, ir.Constant(I64, codes.codes))
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


def emit_binary(operation: str, codes: Codes, addresses: Sequence[Any], count: Any) -> None:
    """z[i] = x[i] op y[i] on codes; ``operation``: LLVM's name."""
    x, y, z = addresses

    def body(element: Any) -> None:
        left, right = (codes.decoded(_load(codes, a, element)) for a in (x, y))
        found = [getattr(codes.b, operation)(p, q) for p, q in zip(left, right, strict=True)]
        _store(codes, codes.encoded(*found), z, element)

    _repeat(codes, count, body)


def emit_binary_lane(operation: str, codes: Codes, addresses: Sequence[Any], count: Any) -> None:
    """z[i] = x[i] op y[0] on codes."""
    x, y, z = addresses
    right = codes.decoded(codes.splat(y))

    def body(element: Any) -> None:
        left = codes.decoded(_load(codes, x, element))
        found = [getattr(codes.b, operation)(p, q) for p, q in zip(left, right, strict=True)]
        _store(codes, codes.encoded(*found), z, element)

    _repeat(codes, count, body)


def emit_decode(codes: Codes, addresses: Sequence[Any], count: Any) -> None:
    """target[i] = float32 of source[i]."""
    source, target = addresses

    def body(element: Any) -> None:
        values = codes.decoded_in_order(_load(codes, source, element))
        for value, place in zip(values, _float_places(codes, target, element), strict=True):
            codes.store(value, place, _FLOAT_BYTES)

    _repeat(codes, count, body)


def emit_encode(codes: Codes, addresses: Sequence[Any], count: Any) -> None:
    """target[i] = code of the float32 source[i]."""
    source, target = addresses

    def body(element: Any) -> None:
        places = _float_places(codes, source, element)
        values = [codes.load(codes.float, place, _FLOAT_BYTES) for place in places]
        _store(codes, codes.encoded_in_order(*values), target, element)

    _repeat(codes, count, body)


def emit_add_four(codes: Codes, addresses: Sequence[Any], count: Any) -> None:
    """target[i] += (a[i] + b[i]) + (c[i] + d[i]): codes to float32."""
    *sources, target = addresses

    def body(element: Any) -> None:
        b = codes.b
        runs = [codes.decoded_in_order(_load(codes, a, element)) for a in sources]
        places = _float_places(codes, target, element)
        for place, p, q, r, s in zip(places, *runs, strict=True):
            total = b.fadd(b.fadd(p, q), b.fadd(r, s))
            old = codes.load(codes.float, place, _FLOAT_BYTES)
            codes.store(b.fadd(old, total), place, _FLOAT_BYTES)

    _repeat(codes, count, body)


add_codes, subtract_codes, multiply_codes, divide_codes = (
    make(partial(emit_binary, name)) for name in ("fadd", "fsub", "fmul", "fdiv")
)
add_code, subtract_code, multiply_code, divide_code = (
    make(partial(emit_binary_lane, name)) for name in ("fadd", "fsub", "fmul", "fdiv")
)
decode_codes, encode_codes, add_four = make(emit_decode), make(emit_encode), make(emit_add_four)
