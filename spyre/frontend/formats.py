"""Enums, dtypes and constants of ``torch_spyre._C``.

Their texts and numbers equal those of the extension, since torch-spyre puts them into generated
code and cache keys. `spyre.dtypes` defines the formats on the card.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from spyre import config
from spyre.dtypes import FORMATS, HOST_DTYPES, encode_copied
from spyre.torch_backend.device import NAMES, warn_user

EXTENSION = "torch_spyre._C"
"""The module that everything of this package stands in for."""

AIUPTI_ACTIVITY_NAME_MAX_BYTES = 127
"""Longest name of a kernel that a profiler of the card shows; bytes."""

T = TypeVar("T", bound=type)


def named_as_extension(name: str) -> Callable[[T], T]:
    """A class that prints and pickles as ``torch_spyre._C.NAME``."""

    def rename(cls: T) -> T:
        cls.__name__ = cls.__qualname__ = name
        cls.__module__ = EXTENSION
        return cls

    return rename


class ExtensionEnum(enum.Enum):
    """An enum as pybind11 makes them: equal to its own members only, and a number when asked."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.value))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self), (self.value,)

    def __copy__(self) -> ExtensionEnum:
        return self

    def __deepcopy__(self, memo: Any) -> ExtensionEnum:
        return self


_FORMAT_NAMES = (
    *("SEN169_FP16", "IEEE_FP32", "INVALID", "SEN143_FP8", "SEN152_FP8", "SEN153_FP9"),
    *("SENINT2", "SENINT4", "SENINT8", "SENINT16", "SENINT24", "IEEE_INT64", "IEEE_INT32"),
    *("SENUINT32", "SENUINT2", "IEEE_FP16", "BOOL", "BFLOAT16", "SEN18F_FP24"),
)
"""Number formats by their number."""


class _Format(ExtensionEnum):
    def elems_per_stick(self) -> int:
        """Elements of one 128-byte stick, 0 where the card stores no such format."""
        known = FORMATS.get(self.name)
        return 0 if known is None else known.elements_per_stick


DataFormats: Any = _Format("DataFormats", {n: k for k, n in enumerate(_FORMAT_NAMES)})  # type: ignore[call-arg]
DataFormats.__module__ = EXTENSION


@named_as_extension("ElementArrangement")
class ElementArrangement(ExtensionEnum):
    """The order of a tensor's elements within its sticks; the numbers are part of pickles."""

    STANDARD = 0
    DL16_TO_FP32 = 1
    QFP8CH = 2
    EXX2 = 3
    FP32_TO_DL16 = 4
    QFP8WT = 5


@named_as_extension("SpyreStreamError")
class SpyreStreamError(ExtensionEnum):
    """Why a stream takes no more work."""

    Success = 0
    Shutdown = 1


@named_as_extension("SpyreDeviceState")
class SpyreDeviceState(ExtensionEnum):
    """States of a card, as the runtime reports them."""

    Ok = 0
    NotInitialized = 1
    StreamError = 2


_FORMATS_OF: dict[torch.dtype, tuple[Any, Any]] = {
    dtype: (DataFormats[row.host_format], DataFormats[row.device_format])
    for dtype, name in NAMES.items()
    for row in (HOST_DTYPES[name],)
}
"""Format on the host and on the card, by dtype (runtime reference §2)."""

_downcast_warnings = config.DOWNCAST_WARN.is_on
_has_warned = False


def get_downcast_warning() -> bool:
    """Whether the first int64 tensor gets a warning."""
    return _downcast_warnings


def set_downcast_warning(enabled: bool) -> None:
    """Whether the first int64 tensor gets a warning."""
    global _downcast_warnings
    _downcast_warnings = bool(enabled)


def formats_of(dtype: torch.dtype) -> tuple[Any, Any]:
    """`DataFormats` of a dtype on the host and on the card; INVALID twice for unknown ones."""
    global _has_warned
    is_due = not _has_warned or torch.is_warn_always_enabled()
    if dtype is torch.int64 and _downcast_warnings and is_due:
        _has_warned = True
        warn_user(
            "Backend Spyre does not support int64; it is held as int32, and values outside of its "
            "range change. Silence this by torch.spyre.set_downcast_warning(False) or "
            "TORCH_SPYRE_DOWNCAST_WARN=0"
        )
    invalid = DataFormats.INVALID
    return _FORMATS_OF.get(dtype, (invalid, invalid))


def get_device_dtype(dtype: torch.dtype) -> Any:
    """Format of a dtype on the card; INVALID for unknown ones."""
    return formats_of(dtype)[1]


def get_elem_in_stick(dtype: torch.dtype) -> int:
    """Elements of a stick; 0 for unknown dtypes."""
    return int(get_device_dtype(dtype).elems_per_stick())


_TORCH_NAMES = {
    torch.float64: "Double",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def check_dtype(dtype: torch.dtype) -> None:
    """RuntimeError for a dtype the card has no format for."""
    if dtype not in _FORMATS_OF:
        name = _TORCH_NAMES.get(dtype, str(dtype).removeprefix("torch."))
        raise RuntimeError(f"Spyre backend does not support dtype {name}")


def encode_constant(value: float, data_format: Any) -> int:
    """The code of a number: float32 bits for IEEE_FP32, else those of the 16-bit format."""
    if data_format is DataFormats.IEEE_FP32:
        return int(np.float32(value).view(np.uint32))
    codes = encode_copied(np.asarray([value], np.float32), "float16", "SEN169_FP16")
    return int(np.asarray(codes).ravel()[0])
