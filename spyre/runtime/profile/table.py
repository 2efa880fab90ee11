"""The rows of a profile (one per execute, kind of execute, kernel or source line) and its tables.

The JSON object and the HTML page show the same rows, the page also the same columns. The source
lines of an execute are known for compiled kernels (:class:`SourceLines`), not for eager operations
and bundles from files. Launches of one kernel may come from different lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from spyre.hw.cost import Resource, TaskKind, mean_spread
from spyre.hw.counters import Counters
from spyre.runtime.drawing import Column, text_table
from spyre.runtime.flex import SourcePlace
from spyre.runtime.profile.collectives import (
    COLLECTIVE_COLUMNS,
    collective_rows,
    collective_summary,
)
from spyre.runtime.profile.kernels import (
    LAUNCH,
    CoreBalance,
    ExecuteProfile,
    KernelProfile,
    balance_of,
    longest_bound,
)
from spyre.runtime.profile.profile import HbmOccupancy, Profile
from spyre.runtime.trace import region_name
from spyre.runtime.units import format_bytes, format_ns

if TYPE_CHECKING:
    from rich.table import Table

MAX_ROWS = 24
"""More executes than this are shown by kind, or by kernel."""
MAX_LINES = 12
"""Source lines in the text; the report contains all of them."""


class ProfileRow(msgspec.Struct, frozen=True, eq=False):
    """A row of the table.

    ``label``: number of the execute, or the number of executes or launches in the row. ``time_ns``:
    all runs in all launches, without launching. ``share``: part of the time of all kernels,
    launching included. ``hbm_roof``: peak of the memory interface, bytes per nanosecond.
    ``detail``: `ExecuteProfile.memory_detail` of the longest execute.
    ``mac_roof``: peak multiply-adds per nanosecond in the formats used. ``per_core``: work of each
    core. ``places``: lines of the user's program, if known.
    """

    label: str
    kernel: str
    op: str
    shape: str
    cores: int
    runs: int
    time_ns: float
    share: float
    bound: str
    counters: Counters
    hbm_roof: float
    mac_roof: float
    per_core: CoreBalance
    places: Places = ()
    spread: float | None = None
    detail: str = ""

    @property
    def bound_text(self) -> str:
        """The bound, with its detail."""
        return f"{self.bound}, {self.detail}" if self.detail else self.bound

    @property
    def hbm_bytes(self) -> int:
        """Bytes over the memory interface."""
        return self.counters.memory_bytes

    @property
    def lx_bytes(self) -> int:
        """Bytes to and from the scratchpads."""
        return self.counters.lx_bytes

    @property
    def hbm_gbps(self) -> float:
        """Achieved bytes per nanosecond."""
        return self.hbm_bytes / self.time_ns if self.time_ns else 0.0

    @property
    def macs_per_ns(self) -> float:
        """Achieved multiply-adds per nanosecond."""
        return self.counters.multiply_adds / self.time_ns if self.time_ns else 0.0

    @property
    def lx_reuse(self) -> float | None:
        """Bytes through LX per byte over the memory interface; None without the latter."""
        return self.lx_bytes / self.hbm_bytes if self.hbm_bytes else None


def rows_of(profile: Profile, every: bool = False) -> tuple[ProfileRow, ...]:
    """Return rows in program order.

    ``every``: one per execute; otherwise executes are grouped if they are more than `MAX_ROWS`.
    """
    executes = list(profile.executes)
    if every or len(executes) <= MAX_ROWS:
        return execute_rows(profile)
    if len(profile.kernels) > 1:
        return kernel_rows(profile)
    kinds: dict[tuple[str, str, int], list[ExecuteProfile]] = {}
    for _, e in executes:
        kinds.setdefault((e.op, e.shape, len(e.cores)), []).append(e)
    name = profile.kernels[0].name
    return tuple(_profile_row(profile, f"{len(same)} of", name, same) for same in kinds.values())


def execute_rows(profile: Profile) -> tuple[ProfileRow, ...]:
    """Return a row per execute statement."""
    return tuple(
        replace(
            _profile_row(profile, str(execute.index), kernel.name, [execute]),
            places=places_of(kernel, [execute]),
        )
        for kernel, execute in profile.executes
    )


def kernel_rows(profile: Profile) -> tuple[ProfileRow, ...]:
    """Return a row per kernel."""
    return tuple(_kernel_row(profile, kernel) for kernel in profile.kernels)


def _kernel_row(profile: Profile, kernel: KernelProfile) -> ProfileRow:
    ops = list(dict.fromkeys(e.op for e in kernel.executes))
    shape = kernel.executes[0].shape if len(kernel.executes) == 1 else ", ".join(ops[:6])
    return replace(
        _profile_row(profile, f"{kernel.launches}×", kernel.name, kernel.executes),
        op=ops[0] if len(ops) == 1 else f"{len(kernel.executes)} executes",
        shape=shape + (", …" if len(ops) > 6 else ""),
        bound=kernel.bound,
        detail="",
        places=places_of(kernel, kernel.executes),
    )


def _profile_row(
    profile: Profile, label: str, kernel: str, executes: Sequence[ExecuteProfile]
) -> ProfileRow:
    """Return one row for ``executes``, named after the longest one."""
    time_ns = sum(e.total_ns for e in executes)
    counters = reduce(add, (e.counters for e in executes), Counters())
    longest = max(executes, key=lambda e: e.total_ns, default=None)
    return ProfileRow(
        label,
        kernel,
        longest.op if longest is not None else "",
        longest.shape if longest is not None else "",
        len({core for e in executes for core in e.cores}),
        counters.executions,
        time_ns,
        time_ns / profile.kernel_ns if profile.kernel_ns else 0.0,
        str(longest.bound) if longest is not None else LAUNCH,
        counters,
        profile.machine.hardware.hbm_peak_gbps,
        _mac_roof(profile, executes),
        balance_of(executes),
        spread=mean_spread((e.total_ns, e.time.spread) for e in executes),
        detail=longest.memory_detail if longest is not None else "",
    )


def total_row(profile: Profile) -> ProfileRow:
    """Return the row of all executes together."""
    executes = [execute for _, execute in profile.executes]
    row = _profile_row(profile, "", "", executes)
    launch_ns = sum(kernel.launch_ns * kernel.launches for kernel in profile.kernels)
    bound = longest_bound(profile.kernels, launch_ns)
    return replace(row, op="all executes", shape="", bound=bound, detail="")


def _mac_roof(profile: Profile, executes: Iterable[ExecuteProfile]) -> float:
    """Return the highest peak of the formats that products have, multiply-adds per nanosecond."""
    hw = profile.machine.hardware
    formats = {e.counts.mac_format for e in executes if e.counters.multiply_adds}
    return hw.cores * max(map(hw.pt_per_ns, formats), default=0.0)


# --- lines of the user's program ---------------------------------------------------------------

Places = tuple[SourcePlace, ...]
UNKNOWN = "not compiled: no line is known"


class SourceRow(msgspec.Struct):
    """The executes that were compiled from ``places``, which are several lines if they were fused.

    ``places`` is empty if no line is known. ``time_ns``: all runs in all launches, without
    launching. ``share``: part of the time of all kernels, launching included.
    """

    places: Places
    ops: dict[str, None] = msgspec.field(default_factory=dict)
    executes: int = 0
    counters: Counters = msgspec.field(default_factory=Counters)
    time_ns: float = 0.0
    share: float = 0.0

    @property
    def module(self) -> str:
        """The modules as text."""
        return ", ".join(dict.fromkeys(place.module_text for place in self.places))

    @property
    def line(self) -> str:
        """The lines as text."""
        return ", ".join(dict.fromkeys(place.line_text for place in self.places)) or UNKNOWN

    @property
    def operations(self) -> str:
        """The names of at most four device operations."""
        names = list(self.ops)
        return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def source_rows(profile: Profile) -> tuple[SourceRow, ...]:
    """Return a row per line, the longest time first; no rows if no line is known."""
    rows: dict[Places, SourceRow] = {}
    for kernel in profile.kernels:
        for execute in kernel.executes:
            for places, launches in _places_by_launches(kernel, execute):
                row = rows.setdefault(places, SourceRow(places))
                row.ops[execute.op] = None
                row.executes += 1
                row.counters = row.counters + execute.statement.counters.times(launches)
                row.time_ns += execute.time.total_ns * launches
    if not any(rows):
        return ()
    for row in rows.values():
        row.share = row.time_ns / profile.kernel_ns if profile.kernel_ns else 0.0
    return tuple(sorted(rows.values(), key=lambda row: -row.time_ns))


def _places_by_launches(
    kernel: KernelProfile, execute: ExecuteProfile
) -> Iterator[tuple[Places, int]]:
    for origin, launches in kernel.origins:
        yield () if origin is None else origin.places_of(execute.statement.index), launches


def places_of(kernel: KernelProfile, executes: Sequence[ExecuteProfile]) -> Places:
    """Return the lines that ``executes`` were compiled from, over all launches of the kernel."""
    rows = (row for execute in executes for row in _places_by_launches(kernel, execute))
    return tuple(dict.fromkeys(place for places, _ in rows for place in places))


def place_object(place: SourcePlace) -> dict[str, object]:
    """Return the object for JSON and traces."""
    return {
        "module": place.module,
        "file": place.file,
        "line": place.line,
        "backward": place.is_backward,
    }


SOURCE_COLUMNS: tuple[Column[SourceRow], ...] = (
    Column("line", lambda row: row.line),
    Column("module", lambda row: row.module),
    Column("operations", lambda row: row.operations),
    Column("runs", lambda row: str(row.counters.executions), lambda row: row.counters.executions),
    Column("time", lambda row: format_ns(row.time_ns), lambda row: row.time_ns),
    Column("share", lambda row: f"{row.share:.0%}", lambda row: row.share),
    Column("HBM", lambda row: format_bytes(row.counters.memory_bytes),
           lambda row: row.counters.memory_bytes),
)  # fmt: skip


# --- text -----------------------------------------------------------------------------------------

TEXT_WIDTH = 200


def make_table(profile: Profile, every: bool = False) -> Table:
    """Return the `rich` table, with a row for launching and a footer of totals."""
    rows = rows_of(profile, every)
    columns = [c for c in COLUMNS if c.name != "kernel" or len(profile.kernels) > 1]
    table = text_table(columns, rows, {"shape"}, total_row(profile) if rows else None)
    if profile.launches:
        launching = _launching(profile)
        table.add_row(*(launching.get(column.name, "") for column in columns))
    return table


def _launching(profile: Profile) -> dict[str, str]:
    return {
        "operation": "launching",
        "runs": str(len(profile.launches)),
        "time": time_text(profile.launch_ns),
        "share": f"{profile.launch_ns / profile.kernel_ns:.0%}" if profile.kernel_ns else "-",
        "bound by": "launch",
    }


COLUMNS: tuple[Column[ProfileRow], ...] = (
    Column("#", lambda row: row.label,
           lambda row: float(row.label) if row.label.isdigit() else None),
    Column("kernel", lambda row: row.kernel),
    Column("operation", lambda row: row.op),
    Column("time", lambda row: time_text(row.time_ns), lambda row: row.time_ns),
    Column("share", lambda row: f"{row.share:.0%}", lambda row: row.share),
    Column("bound by", lambda row: row.bound_text),
    Column("shape", lambda row: row.shape),
    Column("cores", lambda row: str(row.cores), lambda row: row.cores),
    Column("runs", lambda row: str(row.runs), lambda row: row.runs),
    Column("error", lambda row: "-" if row.spread is None else f"±{row.spread:.0%}",
           lambda row: row.spread or 0.0),
    Column("HBM", lambda row: format_bytes(row.hbm_bytes), lambda row: row.hbm_bytes),
    Column("GB/s", lambda row: _of_roof(row.hbm_gbps, row.hbm_roof), lambda row: row.hbm_gbps),
    Column("MAC/ns", lambda row: _of_roof(row.macs_per_ns, row.mac_roof),
           lambda row: row.macs_per_ns),
    Column("LX reuse", lambda row: reuse_text(row),
           lambda row: -1.0 if not row.lx_bytes else row.lx_reuse or 1e30),
    Column("imbalance", lambda row: imbalance_text(row.per_core.imbalance),
           lambda row: row.per_core.imbalance or 0.0),
)  # fmt: skip


def time_text(time_ns: float) -> str:
    """Return modelled time: whole nanoseconds, three digits in larger units, "-" for 0."""
    return format_ns(time_ns) if time_ns else "-"


def reuse_text(row: ProfileRow) -> str:
    """Return LX bytes per byte over the memory interface; "-" without LX traffic."""
    if not row.lx_bytes:
        return "-"
    return "all LX" if row.lx_reuse is None else f"{float(f'{row.lx_reuse:.2g}'):g}×"


def imbalance_text(imbalance: float | None) -> str:
    """Return the busiest core over the mean of the cores that work; "-" if none does."""
    return "-" if imbalance is None else f"{imbalance:.3g}×"


def _of_roof(achieved: float, roof: float) -> str:
    if not achieved:
        return "-"
    number = f"{achieved:.0f}" if achieved >= 100 else f"{achieved:.3g}"
    return f"{number} ({achieved / roof:.0%})"


def summary_lines(profile: Profile) -> list[str]:
    """Return the lines below the table: launches, copies, LX, HBM, the timeline, the machine."""
    count = len(profile.launches)
    spread = f" (±{profile.copy_out_spread:.0%})" if profile.copy_out_spread else ""
    copies = (TaskKind.COPY_IN, "to the card", ""), (TaskKind.COPY_OUT, "to the host", spread)
    moved = [
        f"{format_bytes(profile.copied_bytes(kind))} {where} in "
        f"{time_text(profile.copied_ns(kind))}{error}"
        for kind, where, error in copies
        if profile.copied_bytes(kind)
    ]
    hw = profile.machine.hardware
    return [
        f"launches: {count}, {time_text(profile.launch_ns)} beside "
        f"{time_text(profile.compute_ns)} on the cores",
        f"copies: {', '.join(moved) or 'none'}",
        *collective_summary(profile),
        f"LX: at most {format_bytes(peak)} of {format_bytes(hw.lx_bytes)} per core"
        if (peak := profile.lx_peak_bytes)
        else "LX: not used",
        _hbm_line(profile.hbm),
        f"from first to last: {time_text(profile.makespan_ns)} ({profile.overlap}; cores busy "
        f"{_busy(profile, Resource.COMPUTE)}, DMA {_busy(profile, Resource.DMA)})",
        f"machine {profile.machine.name}, model {profile.cost_model}: HBM {hw.hbm_peak_gbps:g} "
        f"GB/s, PCIe {hw.pcie_gbps:g} GB/s, {hw.launch_us:g} µs a launch; all times are modelled",
        *(
            f"on the CPU: {each.name} {each.calls} ×, measured on the host "
            f"{format_ns(each.seconds * 1e9)}, {each.share:.0%} of the block"
            for each in profile.on_host
        ),
    ]


def _hbm_line(occupancy: HbmOccupancy | None) -> str:
    """Return the most bytes allocated at once, in all of HBM and in each region."""
    if occupancy is None:
        return "HBM: allocations were not recorded"
    peaks = ", ".join(
        f"{region_name(region)} {format_bytes(size_bytes)}"
        for region, size_bytes in enumerate(occupancy.region_peak_bytes)
        if size_bytes
    )
    most = format_bytes(occupancy.peak_bytes)
    return f"HBM: at most {most} allocated{f' ({peaks})' if peaks else ''}"


def _busy(profile: Profile, resource: Resource) -> str:
    if not profile.makespan_ns:
        return "0%"
    return f"{profile.timeline.busy_ns(resource) / profile.makespan_ns:.0%}"


def profile_text(profile: Profile) -> str:
    """Return the tables and the lines below them as plain text."""
    from io import StringIO

    from rich.console import Console

    tables = [make_table(profile)]
    if sources := source_rows(profile):
        columns = [c for c in SOURCE_COLUMNS if c.name != "HBM"]
        folded = {c.name for c in columns if c.number is None}
        tables.append(text_table(columns, sources[:MAX_LINES], folded))
    if profile.collectives:
        tables.append(text_table(COLLECTIVE_COLUMNS, collective_rows(profile), {"collective"}))
    lines = []
    for table in tables:
        out = StringIO()
        Console(file=out, width=TEXT_WIDTH, highlight=False, markup=False).print(table)
        lines += [line.rstrip() for line in out.getvalue().strip("\n").splitlines()]
    if len(sources) > MAX_LINES:
        lines.append(f"and {len(sources) - MAX_LINES} lines that take less time (JSON, report)")
    return "\n".join((*lines, *summary_lines(profile)))
