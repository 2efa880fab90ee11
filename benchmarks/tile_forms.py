"""Tiled against untiled as a table: a row per workload, dim and number of tiles.

Of a result's measurements alone, so that one read from a file gives the same rows; without torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.results import Measurement

SECTION = "tiled"


class Kind(StrEnum):
    """What a measurement of a form is of; its label ``kind``, and the end of its name."""

    HOST = "host"
    SIMULATED = "simulated"
    HBM = "HBM"
    LX = "LX peak"
    AGAINST = "host, against untiled"
    TORCH = "torch CPU"


@dataclass(frozen=True)
class Form:
    """A workload with a dim in ``tiles`` tiles (1: untiled). ``faster``: host time of the untiled
    form over this one's, of the same rounds; 1 for the untiled one. ``hbm_bytes`` of all cores,
    ``lx_peak_bytes`` of the core that uses most.
    """

    workload: str
    dim: str
    tiles: int
    host_ms: float
    host_deviation_ms: float
    faster: float
    simulated_us: float
    hbm_bytes: float
    lx_peak_bytes: float
    torch_ms: float

    @property
    def title(self) -> str:
        return f"{self.workload}, {self.dim}"


def forms(rows: Iterable[Measurement]) -> list[Form]:
    """The rows of the table, in the order of ``rows``."""
    found: dict[tuple[str, str, int], dict[str, Measurement]] = {}
    for row in rows:
        if "kind" in row.labels:
            key = (row.labels["workload"], row.labels["dim"], row.labels["tiles"])
            found.setdefault(key, {})[row.labels["kind"]] = row
    return [
        Form(
            *key,
            kinds[Kind.HOST].median,
            kinds[Kind.HOST].deviation,
            kinds[Kind.AGAINST].median if Kind.AGAINST in kinds else 1.0,
            *(kinds[kind].median for kind in (Kind.SIMULATED, Kind.HBM, Kind.LX)),
            found[(*key[:2], 1)][Kind.TORCH].median,
        )
        for key, kinds in found.items()
    ]


def by_title(rows: Iterable[Form]) -> dict[str, list[Form]]:
    """Forms of one workload and dim together, the untiled one first."""
    groups: dict[str, list[Form]] = {}
    for form in rows:
        groups.setdefault(form.title, []).append(form)
    return groups


LEFT = ("workload", "dim")
HEADS = (
    *LEFT, "tiles", "host ms", "±", "faster", "torch CPU ms", "sim. µs", "sim. faster",
    "HBM MB", "LX KiB",
)  # fmt: skip
"""``faster``: times of the untiled form over those of this one, ``sim.``: simulated."""


def cells(form: Form, untiled: Form) -> tuple[str | float, ...]:
    """Values under HEADS: text or numbers."""
    return (
        form.workload,
        form.dim,
        form.tiles,
        form.host_ms,
        form.host_deviation_ms / form.host_ms,
        form.faster,
        form.torch_ms,
        form.simulated_us,
        untiled.simulated_us / form.simulated_us,
        form.hbm_bytes / 1e6,
        form.lx_peak_bytes / 1024,
    )


def shown(head: str, value: str | float) -> str:
    """A value as text: three significant digits of times, more of what is exact."""
    if isinstance(value, str):
        return value
    if head == "±":
        return f"{value:.0%}"
    if head in ("tiles", "sim. µs", "LX KiB"):
        return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"
    if head.endswith("faster"):
        return f"{value:.2f}"
    return f"{value:,.1f}" if value >= 100 else f"{value:.3g}"
