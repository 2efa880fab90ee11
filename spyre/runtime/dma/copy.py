"""What a copy was: direction, bytes, place, and the descriptor it executed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spyre.layout import DataConversionInfo


class DmaDirection(StrEnum):
    """Which way a copy goes, in the words of the execution-pipeline RFC."""

    TO_DEVICE = "ToDevice"
    FROM_DEVICE = "FromDevice"


@dataclass(frozen=True, slots=True)
class DmaCopy:
    """One copy that was made.

    ``size_bytes``: of device memory, padding included; ``address_bytes``: where it starts there;
    ``name``: of the tensor, where there is one. ``descriptor``: None for raw bytes, else what was
    executed, with host elements counted from the first one of the host tensor.
    """

    direction: DmaDirection
    address_bytes: int
    size_bytes: int
    name: str = ""
    descriptor: DataConversionInfo | None = None
