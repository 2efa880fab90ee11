"""Number modes of the device: one frozen value, given to a Device and to everything it plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spyre.errors import UnsupportedError
from spyre.hw import table as tb


@dataclass(frozen=True, slots=True)
class Numerics:
    """How numbers are held and rounded.

    ``mode`` ``dl16``: 16-bit floats are DLFloat16, every operation computes in float32 and rounds
    once; ``ieee``: the same with IEEE binary16 storage, to tell a bug from quantisation.
    ``ninf_to_host``: what DL16's merged NaN-infinity symbol becomes on a copy to the host.
    """

    mode: Literal["dl16", "ieee"] = "dl16"
    ninf_to_host: Literal["inf", "nan"] = "inf"

    def __post_init__(self) -> None:
        if self.mode not in ("dl16", "ieee"):
            raise UnsupportedError(
                "SPY530",
                f"numerics {self.mode!r} are not simulated",
                expected="dl16 or ieee",
                found=str(self.mode),
            )

    @property
    def half_format(self) -> int:
        """Table code of 16-bit floats."""
        return tb.DL16 if self.mode == "dl16" else tb.HALF
