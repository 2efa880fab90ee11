"""The two format tables: number formats of the card, and torch dtypes with their card formats.

`FORMATS` has one row per ``dataFormat_`` name of the SDSC files; formats without published storage
are listed too (``stored`` is False), so that naming one gives an exact error. `HOST_DTYPES` has one
row per torch dtype. Rules: operations reference §1, runtime reference §2.

Every table that depends on the format reads it from these rows. The module imports nothing of the
package, since kernels are compiled from it.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property

import msgspec

STICK_BYTES = 128
"""Bytes of a stick, the unit of device memory."""


class FormatKind(StrEnum):
    """Meanings of the bits of a format."""

    FLOAT = "float"
    SIGNED = "signed integer"
    UNSIGNED = "unsigned integer"
    BOOLEAN = "boolean"


NO_CODE = -1
"""Code of formats that a table has no number for."""


class DataFormat(msgspec.Struct, frozen=True, dict=True):
    """One number format of the card.

    ``bits`` of one element; ``code_dtype``: numpy dtype that holds the code of one element ("" when
    the storage is not defined; a 4-bit code occupies an int8, `codes_to_bytes` packs them).

    ``plan_code``: its FORMAT word in the plan table of operations; ``transfer_code``: its number in
    the transfer table, where integers are numbered by width; both `NO_CODE` where kernels do not
    read it. ``computed``: elementwise operations take it, and copies convert it from and to every
    float of the host.

    ``precision``, of floats: fraction bits, and exponent of the smallest normal number.
    ``tolerance``: relative and absolute error accepted by default in results stored in it, where
    that is more than torch.testing accepts. ``merges_nan``: infinity and NaN have one code.
    ``host_dtype``: torch dtype of an argument whose dtype is not declared, "" for none.
    """

    name: str
    bits: int
    kind: FormatKind
    code_dtype: str = ""
    plan_code: int = NO_CODE
    transfer_code: int = NO_CODE
    computed: bool = False
    precision: tuple[int, int] = (0, 0)
    tolerance: tuple[float, float] | None = None
    merges_nan: bool = False
    host_dtype: str = ""

    @cached_property
    def elements_per_stick(self) -> int:
        """Elements in a 128-byte stick, 0 when storage is not defined."""
        return STICK_BYTES * 8 // self.bits if self.code_dtype else 0

    @property
    def stored(self) -> bool:
        """True if tensors of this format have a defined place in memory."""
        return bool(self.code_dtype)

    @property
    def copied_only(self) -> bool:
        """True for 8-bit floats: copies keep their bits, from and to the host dtype of the same."""
        return self.is_float and self.bits == 8

    @property
    def is_float(self) -> bool:
        """True for floating point formats."""
        return self.kind is FormatKind.FLOAT


_F, _S, _U, _B = tuple(FormatKind)

FORMATS: dict[str, DataFormat] = {
    row.name: row
    for row in (
        DataFormat(
            "SEN169_FP16",
            16,
            _F,
            "uint16",
            plan_code=0,
            transfer_code=0,
            computed=True,
            precision=(9, -31),
            # one rounding errs by half a unit in the last place, 2^-10; two that differ by a hair
            # before it are a unit apart. Values around 1 that cancel leave their absolute error.
            tolerance=(2.0**-9, 2.0**-10),
            merges_nan=True,
            host_dtype="float16",
        ),
        DataFormat("IEEE_FP32", 32, _F, "float32", 2, 2, True, (23, -126), host_dtype="float32"),
        DataFormat("IEEE_FP16", 16, _F, "uint16", precision=(10, -14)),
        DataFormat("BFLOAT16", 16, _F, "uint16", precision=(7, -126)),
        DataFormat("SEN143_FP8", 8, _F, "uint8", 16, 5, precision=(3, -6)),
        DataFormat("SEN152_FP8", 8, _F, "uint8", 17, 5, precision=(2, -15)),
        DataFormat("SENINT4", 4, _S, "int8", 19),
        DataFormat("SENINT8", 8, _S, "int8", 18, 5),
        DataFormat("SENINT16", 16, _S, "int16", transfer_code=4),
        DataFormat("IEEE_INT32", 32, _S, "int32", 3, 3, host_dtype="int32"),
        DataFormat("IEEE_INT64", 64, _S, "int64"),
        DataFormat("SENUINT32", 32, _U, "uint32", transfer_code=7, host_dtype="int32"),
        DataFormat("BOOL", 8, _B, "uint8"),
        DataFormat("SEN153_FP9", 9, _F),
        DataFormat("SEN18F_FP24", 24, _F),
        DataFormat("SENINT24", 24, _S),
        DataFormat("SENINT2", 2, _S),
        DataFormat("SENUINT2", 2, _U),
    )
}
"""Every number format by its ``dataFormat_`` name."""


class HostDtype(msgspec.Struct, frozen=True):
    """One torch dtype: its formats on the host and on the card.

    ``storage_dtype``: numpy dtype of the 1-D host storage, ``item_bytes`` bytes per element.
    numpy has no bfloat16 and no float8: those hold their bit patterns (uint16, uint8), which
    `decode_host` and `encode_host` read and write. ``transfer_code``: number of the storage in the
    transfer table, below `INTEGER_STORAGE` for those whose elements pass through float32.
    """

    name: str
    host_format: str
    device_format: str
    storage_dtype: str
    item_bytes: int
    transfer_code: int

    @property
    def holds_bits(self) -> bool:
        """True when the host storage holds bit patterns instead of numpy numbers."""
        return self.name in _BIT_PATTERN_NAMES

    @property
    def computed_as_float(self) -> bool:
        """True for floats that elementwise operations of the card take."""
        return FORMATS[self.host_format].is_float and FORMATS[self.device_format].computed


INTEGER_STORAGE = 4
"""First transfer code of host storage of integers."""
_BIT_PATTERN_NAMES = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2fnuz"})

HOST_DTYPES: dict[str, HostDtype] = {
    row.name: row
    for row in (
        HostDtype("float16", "IEEE_FP16", "SEN169_FP16", "float16", 2, 0),
        HostDtype("bfloat16", "BFLOAT16", "SEN169_FP16", "uint16", 2, 1),
        HostDtype("float32", "IEEE_FP32", "IEEE_FP32", "float32", 4, 2),
        HostDtype("bool", "BOOL", "SEN169_FP16", "bool", 1, 3),
        HostDtype("int64", "IEEE_INT64", "IEEE_INT32", "int64", 8, 4),
        HostDtype("int32", "IEEE_INT32", "IEEE_INT32", "int32", 4, 5),
        HostDtype("int16", "SENINT16", "SENINT16", "int16", 2, 6),
        HostDtype("int8", "SENINT8", "SENINT8", "int8", 1, 7),
        HostDtype("uint8", "SENUINT32", "SENUINT32", "uint8", 1, 8),
        HostDtype("float8_e4m3fn", "SEN143_FP8", "SEN143_FP8", "uint8", 1, 8),
        HostDtype("float8_e5m2fnuz", "SEN152_FP8", "SEN152_FP8", "uint8", 1, 8),
        HostDtype("qint8", "SENINT8", "SENINT8", "int8", 1, 7),
        HostDtype("quint8", "SENUINT32", "SENUINT32", "uint8", 1, 8),
        HostDtype("quint4x2", "SENUINT2", "SENUINT2", "uint8", 1, 8),
        HostDtype("quint2x4", "SENUINT2", "SENUINT2", "uint8", 1, 8),
    )
}
"""Every torch dtype that has a device format, by its name without ``torch.``.

uint8 takes 4 bytes per element on the card, as the table of the runtime reference says.
"""
