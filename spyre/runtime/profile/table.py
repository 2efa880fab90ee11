"""The table of a profile, and the lines under it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spyre.hw.cost.timeline.task import Kind, Resource
from spyre.runtime.flex.trace_counters import region_name
from spyre.runtime.profile.hbm_occupancy import HbmOccupancy
from spyre.runtime.profile.profile_data import ProfileData
from spyre.runtime.profile.rows import Row, rows_of, total_row
from spyre.runtime.units import format_bytes, format_ns

if TYPE_CHECKING:
    from rich.table import Table

LEFT = ("kernel", "operation", "shape", "bound by")
TEXT_WIDTH = 200


def make_table(profile: ProfileData, every: bool = False) -> Table:
    """The rich table, with a line of totals."""
    from rich.box import SIMPLE
    from rich.table import Table

    rows, total = rows_of(profile, every), total_row(profile)
    columns = [c for c in COLUMNS if c != "kernel" or len(profile.kernels) > 1]
    table = Table(box=SIMPLE, show_footer=bool(rows), pad_edge=False)
    for column in columns:
        table.add_column(
            column,
            footer=CELLS[column](total),
            justify="left" if column in LEFT else "right",
            no_wrap=column != "shape",
        )
    for row in rows:
        table.add_row(*(CELLS[column](row) for column in columns))
    if profile.launches:
        launching = {**dict.fromkeys(columns, ""), **_launching(profile)}
        table.add_row(*(launching[column] for column in columns))
    return table


def _launching(profile: ProfileData) -> dict[str, str]:
    return {
        "operation": "launching",
        "runs": str(len(profile.launches)),
        "time": time_text(profile.launch_ns),
        "share": f"{profile.launch_ns / profile.kernel_ns:.0%}" if profile.kernel_ns else "-",
        "bound by": "launch",
    }


CELLS: dict[str, Callable[[Row], str]] = {
    "#": lambda row: row.label,
    "kernel": lambda row: row.kernel,
    "operation": lambda row: row.op,
    "shape": lambda row: row.shape,
    "cores": lambda row: str(row.cores),
    "runs": lambda row: str(row.runs),
    "time": lambda row: time_text(row.time_ns),
    "share": lambda row: f"{row.share:.0%}",
    "bound by": lambda row: row.bound,
    "HBM": lambda row: format_bytes(row.hbm_bytes),
    "GB/s": lambda row: _of_roof(row.hbm_gbps, row.hbm_roof),
    "MAC/ns": lambda row: _of_roof(row.macs_per_ns, row.mac_roof),
    "LX reuse": lambda row: reuse_text(row),
    "imbalance": lambda row: imbalance_text(row.per_core.imbalance),
}
"""The text of a row's cell, by column."""
COLUMNS = tuple(CELLS)


def time_text(time_ns: float) -> str:
    """Modelled time: whole nanoseconds, then three digits."""
    return format_ns(round(time_ns)) if time_ns else "-"


def reuse_text(row: Row) -> str:
    """Bytes through LX for each over the memory interface."""
    if not row.lx_bytes:
        return "-"
    return "all LX" if row.lx_reuse is None else f"{row.lx_reuse:.2g}×"


def imbalance_text(imbalance: float | None) -> str:
    """The busiest core over the mean of those that work."""
    return "-" if imbalance is None else f"{imbalance:.3g}×"


def _of_roof(achieved: float, roof: float) -> str:
    if not achieved:
        return "-"
    number = f"{achieved:.0f}" if achieved >= 100 else f"{achieved:.3g}"
    return f"{number} ({achieved / roof:.0%})"


def summary_lines(profile: ProfileData) -> list[str]:
    """What the table leaves out: copies, launching, the timeline, the machine."""
    count = len(profile.launches)
    moved = [
        f"{format_bytes(profile.copied_bytes(kind))} {where} in "
        f"{time_text(profile.copied_ns(kind))}"
        for kind, where in ((Kind.COPY_IN, "to the card"), (Kind.COPY_OUT, "to the host"))
        if profile.copied_bytes(kind)
    ]
    hw = profile.machine.hardware
    return [
        f"launches: {count}, {time_text(profile.launch_ns)} beside "
        f"{time_text(profile.compute_ns)} on the cores",
        f"copies: {', '.join(moved) or 'none'}",
        _lx_line(profile.lx_peak_bytes, hw.lx_bytes),
        _hbm_line(profile.hbm, hw.hbm_bytes),
        f"from first to last: {time_text(profile.makespan_ns)} ({profile.overlap}; cores busy "
        f"{_busy(profile, Resource.COMPUTE)}, DMA {_busy(profile, Resource.DMA)})",
        f"machine {profile.machine.name}, model {profile.cost_model}: HBM {hw.hbm_peak_gbps:g} "
        f"GB/s, PCIe {hw.pcie_gbps:g} GB/s, {hw.launch_us:g} µs a launch; all times are modelled",
    ]


def _lx_line(peak_bytes: int, lx_bytes: int) -> str:
    if not peak_bytes:
        return "LX: not used"
    return f"LX: at most {format_bytes(peak_bytes)} of {format_bytes(lx_bytes)} per core"


def _hbm_line(found: HbmOccupancy | None, hbm_bytes: int) -> str:
    """What was allocated at most, and where."""
    if found is None:
        return "HBM: allocations were not recorded"
    peaks = ", ".join(
        f"{region_name(region)} {format_bytes(size_bytes)}"
        for region, size_bytes in enumerate(found.region_peak_bytes)
        if size_bytes
    )
    most = f"{format_bytes(found.peak_bytes)} of {format_bytes(hbm_bytes)}"
    return f"HBM: at most {most} allocated{f' ({peaks})' if peaks else ''}"


def _busy(profile: ProfileData, resource: Resource) -> str:
    if not profile.makespan_ns:
        return "0%"
    return f"{profile.timeline.busy_ns(resource) / profile.makespan_ns:.0%}"


def profile_text(profile: ProfileData, every: bool = False, width: int = TEXT_WIDTH) -> str:
    """The table and the lines under it as plain text."""
    return "\n".join((*table_lines(make_table(profile, every), width), *summary_lines(profile)))


def table_lines(table: Table, width: int) -> Sequence[str]:
    """A rich table as plain text, at most ``width`` columns."""
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    Console(file=out, width=width, highlight=False).print(table)
    return [line.rstrip() for line in out.getvalue().strip("\n").splitlines()]
