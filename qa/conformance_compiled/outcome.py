"""Settings in which functions are compiled, and the outcome of one function in one of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

CORES = (1, 2, 4, 8, 16, 32)
FORMS = {"symbolic": True, "baked": False}
"""True if addresses of a bundle are launch arguments, by the name of the form."""

SAME, ROUNDED, DIFFERENT = "same bits", "within rounding", "different"


@dataclass(frozen=True, order=True)
class Setting:
    """``form``: a name of `FORMS`. ``cores``: SENCORES."""

    form: str
    cores: int

    def __str__(self) -> str:
        return f"{self.form}, {self.cores} cores"


SETTINGS = tuple(Setting(form, cores) for form in FORMS for cores in reversed(CORES))
"""All settings; the first is the reference of the others."""


@dataclass(frozen=True)
class Outcome:
    """One function in one setting.

    ``worst``: the largest error divided by the case's tolerance. ``bits``: compared with the first
    setting. ``moved``: the largest difference from that setting's results divided by the tolerance.
    ``sums``: extent and number of parts of K, for each matmul. ``fallbacks``: names of the calls to
    the CPU. ``faults``: reasons why it does not pass.
    """

    name: str
    form: str
    cores: int
    worst: float = 0.0
    bits: str = SAME
    moved: float = 0.0
    kernels: int = 0
    arguments: int = 0
    operations: int = 0
    sums: tuple[tuple[int, int], ...] = ()
    fallbacks: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return asdict(self)
