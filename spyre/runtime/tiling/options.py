"""What a launch may do with tensors that are larger than a kernel's tiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from spyre import config


class Remainder(StrEnum):
    """A dim that is no multiple of its tile: refuse, or run the last tile on padded copies."""

    ERROR = "error"
    PAD = "pad"


class Reduction(StrEnum):
    """A tiled dim that the kernel reduces: refuse, or add up the results of its tiles."""

    ERROR = "error"
    ACCUMULATE = "accumulate"


@dataclass(frozen=True, slots=True)
class TilingOptions:
    """Options of one launch; ``allow_tiled_launch`` is SPYRE_ALLOW_TILED_LAUNCH by default."""

    allow_tiled_launch: bool = field(default_factory=config.tiled_launch_allowed)
    remainder: Remainder = Remainder.ERROR
    reduction: Reduction = Reduction.ERROR

    def __post_init__(self) -> None:
        object.__setattr__(self, "remainder", Remainder(self.remainder))
        object.__setattr__(self, "reduction", Reduction(self.reduction))
