"""Reductions of collectives: combine two stick images with the arithmetic of the card's operations.

16-bit and 32-bit floats go through the compiled kernels; integers and bools, whose elements the
card adds as words that wrap, through numpy, whose words wrap in the same way. An int64, which is
an int32 on the card, does not wrap: a sum or product beyond its range is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.dtypes import find_format, find_host_dtype
from spyre.errors import UnsupportedError
from spyre.hw import plan_table as tb
from spyre.hw.numerics import Numerics
from spyre.hw.ops import CODE_FORMS, OPCODES
from spyre.hw.spec import STICK_BYTES

Bytes = npt.NDArray[np.uint8]
Operator = Literal["sum", "product", "min", "max", "band", "bor", "bxor"]
OPERATORS: tuple[str, ...] = get_args(Operator)

_WORD = np.iinfo(np.int32)
_FLOATS = {"sum": "add", "product": "mul", "min": "min", "max": "max"}
_INTEGERS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_BOOLS: dict[str, Callable[..., Any]] = {
    "sum": np.bitwise_or,
    "product": np.bitwise_and,
    "min": np.bitwise_and,
    "max": np.bitwise_or,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
"""Bools are the codes of 0 and 1, so bitwise operations suffice: ``or`` is sum and maximum."""


class Combiner(msgspec.Struct, frozen=True):
    """One reduction operator over one dtype in one number mode.

    ``dtype``: torch dtype name. UnsupportedError SPY953 for an operator that the dtype does not
    have, such as ``bor`` of floats.
    """

    operator: str
    dtype: str
    numerics: Numerics

    def __post_init__(self) -> None:
        allowed = list(_FLOATS) if self.is_float else list(OPERATORS)
        if self.operator not in allowed:
            message = f"collectives have no reduction {self.operator} of {self.dtype}"
            expected = ", ".join(allowed)
            raise UnsupportedError("SPY953", message, expected=expected, found=self.operator)
        if self._words is None and not self.is_float:
            message = f"the card has no arithmetic for tensors of {self.dtype}"
            expected = "float16, bfloat16, float32, bool, int8, int16, int32, int64 or uint8"
            raise UnsupportedError("SPY953", message, expected=expected, found=self.dtype)

    @property
    def is_float(self) -> bool:
        """True if the card adds the elements as floats, with rounding."""
        return find_host_dtype(self.dtype).computed_as_float

    @property
    def _words(self) -> str | None:
        if self.dtype == "bool":
            return "uint16"
        name = find_format(find_host_dtype(self.dtype).device_format).code_dtype
        return name if np.dtype(name).kind in "iu" and not self.dtype.startswith("float8") else None

    @property
    def _format_code(self) -> int:
        return tb.FP32 if self.dtype == "float32" else self.numerics.half_format

    def combine(self, x: Bytes, y: Bytes, out: Bytes) -> None:
        """``out`` = x op y; equal numbers of whole sticks, ``out`` may be x or y.

        UnsupportedError SPY901 for int64 sums and products beyond int32, also of padding.
        """
        if not self.is_float:
            self._combine_words(x, y, out)
            return
        from spyre.hw.kernels.machine_code import COMBINE, entry_of

        # The card's extremes prefer numbers; torch's are NaN if one of the elements is.
        propagates = self.dtype == "float32" and self.operator in ("min", "max")
        lost = [_nan_words(run) for run in (x, y)] if propagates else []
        name = _FLOATS[self.operator]
        fused = self._format_code == tb.DL16 and name in CODE_FORMS
        sticks = out.size // STICK_BYTES
        addresses = [run.ctypes.data for run in (x, y, out)]
        combine = entry_of(COMBINE).function
        combine(OPCODES[name], self._format_code, fused, *addresses, sticks)
        for where, words in lost:
            out.view(np.uint32)[where] = words

    def _combine_words(self, x: Bytes, y: Bytes, out: Bytes) -> None:
        operation = (_BOOLS if self.dtype == "bool" else _INTEGERS)[self.operator]
        left, right, result = (run.view(np.dtype(self._words)) for run in (x, y, out))
        if self.dtype == "int64" and self.operator in ("sum", "product"):
            exact = operation(left, right, dtype=np.int64)
            low, high = int(exact.min(initial=0)), int(exact.max(initial=0))
            if low < _WORD.min or high > _WORD.max:
                raise UnsupportedError(
                    "SPY901",
                    f"an int64 {self.operator} does not fit the card, which holds int64 as int32",
                    expected=f"{_WORD.min} to {_WORD.max}",
                    found=str(low if low < _WORD.min else high),
                    hint="keep such numbers on the CPU, or compute with floats",
                )
            result[:] = exact
            return
        operation(left, right, out=result)
        if self.dtype == "uint8":
            # a byte is a word on the card; it wraps where torch's byte does
            np.bitwise_and(result, 0xFF, out=result)

    def add_once(self, runs: Sequence[Bytes], out: Bytes) -> None:
        """``out`` (one of the runs or not) = their sum, float32 in their order, rounded once."""
        from spyre.hw.kernels.machine_code import ADD_ALL, entry_of

        addresses = np.array([run.ctypes.data for run in runs], np.int64)
        add_all = entry_of(ADD_ALL).function
        add_all(self._format_code, addresses, out.ctypes.data, out.size // STICK_BYTES)


def _nan_words(run: Bytes) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint32]]:
    """Return where float32 elements are NaN, and a copy of their bits."""
    (where,) = np.isnan(run.view(np.float32)).nonzero()
    return where, run.view(np.uint32)[where]
