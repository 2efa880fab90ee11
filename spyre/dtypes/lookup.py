"""Formats and dtypes by name, with errors for names that do not exist or have no storage."""

from __future__ import annotations

from functools import cache

from spyre.dtypes.formats import FORMATS, HOST_DTYPES, DataFormat, HostDtype
from spyre.errors import LaunchError, UnsupportedError

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

    Names without an alias are returned unchanged; `find_host_dtype` refuses unknown ones.
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


@cache
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
