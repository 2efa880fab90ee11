"""The two format tables: what the card stores, and what a torch dtype becomes on the card.

`FORMATS` has one row per ``dataFormat_`` name of the SDSC files; formats whose storage nobody
published are listed too (``stored`` is False), so that naming one gives an exact error.
`HOST_DTYPES` has one row per torch dtype. Rules: operations reference §1, runtime reference §2.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from spyre.errors import LaunchError, UnsupportedError

STICK_BYTES = 128
"""Bytes of a stick, the unit of device memory."""


class FormatKind(StrEnum):
    """What the bits of a format mean."""

    FLOAT = "float"
    SIGNED = "signed integer"
    UNSIGNED = "unsigned integer"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True)
class DataFormat:
    """One number format of the card.

    ``bits`` of one element; ``elements_per_stick`` in a 128-byte stick (0 when storage is not
    defined); ``code_dtype``: numpy dtype that holds the code of one element ("" when not stored;
    a 4-bit code stands alone in an int8, packing is `codes_to_bytes`'s work).
    """

    name: str
    bits: int
    kind: FormatKind
    elements_per_stick: int
    code_dtype: str

    @property
    def stored(self) -> bool:
        """True if tensors of this format have a defined place in memory."""
        return self.elements_per_stick > 0

    @property
    def is_float(self) -> bool:
        """True for floating point formats."""
        return self.kind is FormatKind.FLOAT


def _stored(name: str, bits: int, kind: FormatKind, code_dtype: str) -> DataFormat:
    return DataFormat(name, bits, kind, STICK_BYTES * 8 // bits, code_dtype)


def _unstored(name: str, bits: int, kind: FormatKind) -> DataFormat:
    return DataFormat(name, bits, kind, 0, "")


_F, _S, _U, _B = (
    FormatKind.FLOAT,
    FormatKind.SIGNED,
    FormatKind.UNSIGNED,
    FormatKind.BOOLEAN,
)

FORMATS: dict[str, DataFormat] = {
    f.name: f
    for f in (
        _stored("SEN169_FP16", 16, _F, "uint16"),
        _stored("IEEE_FP32", 32, _F, "float32"),
        _stored("IEEE_FP16", 16, _F, "uint16"),
        _stored("BFLOAT16", 16, _F, "uint16"),
        _stored("SEN143_FP8", 8, _F, "uint8"),
        _stored("SEN152_FP8", 8, _F, "uint8"),
        _stored("SENINT4", 4, _S, "int8"),
        _stored("SENINT8", 8, _S, "int8"),
        _stored("SENINT16", 16, _S, "int16"),
        _stored("IEEE_INT32", 32, _S, "int32"),
        _stored("IEEE_INT64", 64, _S, "int64"),
        _stored("SENUINT32", 32, _U, "uint32"),
        _stored("BOOL", 8, _B, "uint8"),
        _unstored("SEN153_FP9", 9, _F),
        _unstored("SEN18F_FP24", 24, _F),
        _unstored("SENINT24", 24, _S),
        _unstored("SENINT2", 2, _S),
        _unstored("SENUINT2", 2, _U),
    )
}
"""Every number format by its ``dataFormat_`` name."""


@dataclass(frozen=True, slots=True)
class HostDtype:
    """What one torch dtype is on the host and on the card.

    ``storage_dtype``: numpy dtype of the 1-D host storage, ``item_bytes`` bytes per element.
    numpy has no bfloat16 and no float8: those hold their bit patterns (uint16, uint8), which
    `decode_host` and `encode_host` read and write.
    """

    name: str
    host_format: str
    device_format: str
    storage_dtype: str
    item_bytes: int

    @property
    def holds_bits(self) -> bool:
        """True when the host storage holds bit patterns instead of numpy numbers."""
        return self.name in _BIT_PATTERN_NAMES


_BIT_PATTERN_NAMES = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2fnuz"})

HOST_DTYPES: dict[str, HostDtype] = {
    row.name: row
    for row in (
        HostDtype("float16", "IEEE_FP16", "SEN169_FP16", "float16", 2),
        HostDtype("bfloat16", "BFLOAT16", "SEN169_FP16", "uint16", 2),
        HostDtype("float32", "IEEE_FP32", "IEEE_FP32", "float32", 4),
        HostDtype("bool", "BOOL", "SEN169_FP16", "bool", 1),
        HostDtype("int64", "IEEE_INT64", "IEEE_INT32", "int64", 8),
        HostDtype("int32", "IEEE_INT32", "IEEE_INT32", "int32", 4),
        HostDtype("int16", "SENINT16", "SENINT16", "int16", 2),
        HostDtype("int8", "SENINT8", "SENINT8", "int8", 1),
        HostDtype("uint8", "SENUINT32", "SENUINT32", "uint8", 1),
        HostDtype("float8_e4m3fn", "SEN143_FP8", "SEN143_FP8", "uint8", 1),
        HostDtype("float8_e5m2fnuz", "SEN152_FP8", "SEN152_FP8", "uint8", 1),
        HostDtype("qint8", "SENINT8", "SENINT8", "int8", 1),
        HostDtype("quint8", "SENUINT32", "SENUINT32", "uint8", 1),
        HostDtype("quint4x2", "SENUINT2", "SENUINT2", "uint8", 1),
        HostDtype("quint2x4", "SENUINT2", "SENUINT2", "uint8", 1),
    )
}
"""Every torch dtype that has a device format, by its name without ``torch.``.

uint8 takes 4 bytes per element on the card, as the table of the runtime reference says.
"""

_ALIASES = {
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "f32": "float32",
    "float": "float32",
    "fp64": "float64",
    "f64": "float64",
    "double": "float64",
    "i64": "int64",
    "long": "int64",
    "i32": "int32",
    "int": "int32",
    "i16": "int16",
    "short": "int16",
    "i8": "int8",
    "u8": "uint8",
    "fp8": "float8_e4m3fn",
    "fp8_143": "float8_e4m3fn",
    "fp8_152": "float8_e5m2fnuz",
}


def canonical_dtype_name(name: str) -> str:
    """Torch-style name of a dtype: ``fp16``, ``torch.float16`` and ``float16`` are one.

    Names without an alias come back as they are; `find_host_dtype` judges them.
    """
    bare = name.strip().removeprefix("torch.")
    return _ALIASES.get(bare, bare)


def find_format(name: str) -> DataFormat:
    """The format called ``name``, stored or not; LaunchError SPY310 for an unknown name."""
    if name not in FORMATS:
        raise LaunchError(
            "SPY310", f"unknown number format {name!r}", expected=f"one of {', '.join(FORMATS)}"
        )
    return FORMATS[name]


@cache
def find_stored_format(name: str) -> DataFormat:
    """The format called ``name``; UnsupportedError SPY312 when its storage is not defined."""
    data_format = find_format(name)
    if not data_format.stored:
        raise UnsupportedError("SPY312", f"number format {name} has no defined storage")
    return data_format


def find_host_dtype(name: str) -> HostDtype:
    """The row of a torch dtype name or alias.

    UnsupportedError SPY311 when there is none, or when its device format has no storage.
    """
    row = HOST_DTYPES.get(canonical_dtype_name(name))
    if row is None or not FORMATS[row.device_format].stored:
        supported = [r.name for r in HOST_DTYPES.values() if FORMATS[r.device_format].stored]
        raise UnsupportedError(
            "SPY311",
            f"Spyre backend does not support dtype {name}",
            expected=f"one of {', '.join(supported)}",
        )
    return row
