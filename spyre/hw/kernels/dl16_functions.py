"""Operations on vectors of DL16 codes that stay in registers: decoded, computed, encoded.

Functions of numbers are the text of :mod:`.vector_math`, run over LLVM vectors: `vector_formula`.
Its results have the same bits. Codes never decode to NaN, so formulas over vectors do not keep it.
The vectors of an iteration are computed in step, instruction by instruction: a processor looks
ahead less far than one formula is long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from types import FunctionType
from typing import Any

import msgspec
import numpy as np
from llvmlite import ir
from numba.core import cgutils

from spyre.hw.kernels import dl16_vectors, vector_math
from spyre.hw.kernels.dl16_vectors import CodeVectors, Operation
from spyre.hw.ops import CODE_FORMS

Arithmetic = Callable[..., Any]
_FEW_CODES = 16
"""Codes of a vector of processors with 16 vector registers."""


def _instruction(name: str, swapped: bool = False) -> Callable[[Vector, Any], Vector]:
    """The operator of an instruction of LLVM."""
    return lambda x, y: x.do(name, y, x) if swapped else x.do(name, x, y)


def _comparison(sign: str) -> Callable[[Vector, Any], Any]:
    return lambda x, y: x.each(partial(x.codes.b.fcmp_ordered, sign), x, y)


class Vector(msgspec.Struct, frozen=True, eq=False):
    """LLVM vectors of float32, or of int32 words, computed in step; numbers become vectors of their
    type. Comparisons give vectors of bits, for `_select`.
    """

    codes: CodeVectors
    values: Sequence[Any]

    __array_ufunc__ = None  # numpy's numbers leave their operators to this class

    def of(self, number: Any) -> Sequence[Any]:
        """The LLVM values of vectors, or of a number in all lanes."""
        if isinstance(number, Vector):
            return number.values
        kind = self.values[0].type
        element = ir.Constant(kind.element, number.item())
        return [ir.Constant(kind, [element] * kind.count)] * len(self.values)

    def each(self, emit: Callable[..., Any], *operands: Any) -> Vector:
        """``emit`` of the LLVM values of vectors or numbers, one of the vectors after the other."""
        return Vector(self.codes, list(map(emit, *map(self.of, operands))))

    def do(self, name: str, left: Any, right: Any) -> Vector:
        """An instruction of LLVM on two vectors or numbers."""
        return self.each(getattr(self.codes.b, name), left, right)

    __add__, __radd__ = _instruction("fadd"), _instruction("fadd", swapped=True)
    __sub__, __rsub__ = _instruction("fsub"), _instruction("fsub", swapped=True)
    __mul__, __rmul__ = _instruction("fmul"), _instruction("fmul", swapped=True)
    __truediv__, __rtruediv__ = _instruction("fdiv"), _instruction("fdiv", swapped=True)
    __lt__, __gt__, __ge__ = _comparison("<"), _comparison(">"), _comparison(">=")
    __eq__ = _comparison("==")

    def __neg__(self) -> Vector:
        return self.each(self.codes.b.fneg, self)

    def cast(self, kind: Any) -> Vector:
        """The same bits as another type."""
        return self.each(lambda value: self.codes.b.bitcast(value, kind), self)


# --- names of `.intrinsics` that `vector_math` uses, over vectors -------------------------------


def _vector_among(operands: Any) -> Vector:
    found: Vector = next(x for x in operands if isinstance(x, Vector))
    return found


def _float(x: Any) -> Any:
    """float32 of a number or of words."""
    if isinstance(x, Vector):
        return x.each(lambda value: x.codes.b.sitofp(value, x.codes.float), x)
    return np.float32(x)


def _llvm_function(name: str) -> Arithmetic:
    """LLVM's function of float32 vectors."""

    def function(*operands: Any) -> Vector:
        vector = _vector_among(operands)
        codes = vector.codes
        kind = ir.FunctionType(codes.float, [codes.float] * len(operands))
        full_name = f"llvm.{name}.v{codes.codes // 2}f32"
        declared = cgutils.get_or_insert_function(codes.b.module, kind, full_name)
        return vector.each(lambda *values: codes.b.call(declared, values), *operands)

    return function


def _extreme(sign: str) -> Arithmetic:
    def extreme(left: Any, right: Any) -> Vector:
        vector = _vector_among((left, right))
        b = vector.codes.b
        return vector.each(lambda x, y: b.select(b.fcmp_ordered(sign, x, y), x, y), left, right)

    return extreme


def _select(condition: Any, yes: Any, no: Any) -> Vector:
    vector = _vector_among((yes, no))
    return vector.each(vector.codes.b.select, condition, yes, no)


multiply_add = _llvm_function("fma")
"""`.intrinsics.multiply_add` over vectors: rounded once, on every processor."""


def _in_step(x: Vector) -> Vector:
    """x, behind an empty instruction on all vectors. With 16 registers LLVM would else compute one
    vector after the other, farther apart than a processor looks ahead.
    """
    codes, count = x.codes, len(x.values)
    if codes.codes != _FEW_CODES or codes.x86_pack is None:
        return x
    kinds = [codes.float] * count
    kind = ir.FunctionType(ir.LiteralStructType(kinds), kinds)
    registers = ",".join([*["=x"] * count, *map(str, range(count))])
    together = codes.b.call(ir.InlineAsm(kind, "", registers), x.values)
    return Vector(codes, [codes.b.extract_value(together, k) for k in range(count)])


_ARITHMETIC: dict[str, Arithmetic] = {
    "F": _float,
    "float_bits": lambda x: x.cast(x.codes.word),
    "bits_float": lambda x: x.cast(x.codes.float),
    "add_i32": _instruction("add"),
    "sub_i32": _instruction("sub"),
    "and_i32": _instruction("and_"),
    "or_i32": _instruction("or_"),
    "shl_i32": _instruction("shl"),
    "sar_i32": _instruction("ashr"),
    "maximum_f32": _extreme(">"),
    "minimum_f32": _extreme("<"),
    "multiply_add": multiply_add,
    "select": _select,
    "square_root": _llvm_function("sqrt"),
    "keep_nan": lambda x, y: y,
    "in_step": _in_step,
}


@cache
def _formulas() -> dict[str, Any]:
    """Names of `vector_math`, whose functions are plain Python over vectors."""
    names = dict(vars(vector_math))
    for name, value in vars(vector_math).items():
        function = getattr(value, "py_func", None)
        if function is not None:
            names[name] = FunctionType(function.__code__, names, name)
    names.update(_ARITHMETIC)
    return names


def vector_formula(name: str) -> Callable[[Vector], Vector]:
    """The formula of `vector_math` with this name, over vectors."""
    formula: Callable[[Vector], Vector] = _formulas()[name]
    return formula


# --- operations on codes ----------------------------------------------------------------------

_FIRST_GUESS = np.int32(0x5F0B8A81)
F = np.float32
ALL = (True, True, True)


def _inverse_root(x: Vector) -> Vector:
    """1/√x of positive numbers, near enough to have the code of `vector_math.inverse_root`: two
    Newton steps from a guess by the exponent, with factors fitted by us to all codes.
    """
    words = x.cast(x.codes.word)
    halved = words.do("lshr", words, np.int32(1))
    y = words.do("sub", _FIRST_GUESS, halved).cast(x.codes.float)
    y = y * multiply_add(-(x * y), y, F(1.89000928))
    h = x * F(0.49999696) * y
    result: Vector = y * multiply_add(-h, y, F(1.49999917))
    return result


def inverse_root_of_codes(codes: CodeVectors, vectors: Sequence[Any]) -> list[Any]:
    """1/√x: 0 of infinity, infinity of 0, negative infinity of negative numbers."""
    return list(
        map(partial(_special_roots, codes), vectors, of_numbers(_inverse_root, codes, vectors))
    )


def _special_roots(codes: CodeVectors, x: Any, found: Any) -> Any:
    b = codes.b
    found = b.select(b.icmp_unsigned("==", x, codes.shorts(0x7FFF)), codes.shorts(0), found)
    found = b.select(b.icmp_unsigned("==", x, codes.shorts(0)), codes.shorts(0x7FFF), found)
    return b.select(b.icmp_signed("<", x, codes.shorts(0)), codes.shorts(0xFFFF), found)


def of_numbers(
    function: Callable[[Vector], Vector],
    codes: CodeVectors,
    vectors: Sequence[Any],
    special: tuple[bool, bool, bool] = ALL,
) -> list[Any]:
    """Codes of ``function`` of vectors of codes; ``special``: whether zeros, infinities and signs
    of results matter, see `CodeVectors.halves` and `CodeVectors.encoded`.
    """
    decoded = [value for x in vectors for value in codes.decoded(x, *special[:2])]
    found = function(Vector(codes, decoded)).values
    return [codes.encoded(*pair, special[2]) for pair in zip(found[::2], found[1::2], strict=True)]


_SPECIAL = {
    **dict.fromkeys(("half_exponential", "half_sigmoid"), (False, False, False)),
    **dict.fromkeys(("half_silu", "hyperbolic_tangent"), (False, False, True)),
    **dict.fromkeys(("gelu", "reciprocal"), (True, False, True)),
}
"""``special`` of `of_numbers` where fewer give the same codes."""


def code_operation(name: str) -> Operation:
    """The operation that a row of the operation table names as its ``code_form``."""
    if name == inverse_root_of_codes.__name__:
        return inverse_root_of_codes
    known, special = dl16_vectors.OPERATIONS.get(name), _SPECIAL.get(name, ALL)
    return known or partial(of_numbers, vector_formula(name), special=special)


CODE_OPERATIONS: dict[str, Operation] = {
    name: code_operation(row.code_form) for name, row in CODE_FORMS.items()
}
"""Operations on vectors of codes, by kernel operation."""
