"""Files of a profile: written whole or not at all, as a JSON object, read back, and two of them
compared.

Keys are stable; docs/profiling.md lists them. A file that holds such an object is a *kept run*,
which ``spyre-run --compare`` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from spyre.errors import JsonLocation, ProfileError
from spyre.files import atomic_write, read_regular, writable_target
from spyre.hw.cost import Resource, TaskKind
from spyre.runtime.profile.collectives import collective_object, collective_rows
from spyre.runtime.profile.data import HbmOccupancy, ProfileData
from spyre.runtime.profile.kernels import CoreBalance, KernelProfile
from spyre.runtime.profile.sources import SourceRow, place_object, source_rows
from spyre.runtime.profile.table import ProfileRow, execute_rows, kernel_rows, time_text
from spyre.runtime.trace import hbm_counters
from spyre.runtime.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table


def check_target(path: Path | str) -> Path:
    """Where a file goes, symbolic links followed. ProfileError SPY782 when none can be there."""
    return writable_target(path, partial(_not_writable, path))


def write_whole(path: Path | str, content: bytes) -> None:
    """Write ``content``. ProfileError SPY782 when it cannot be written."""
    target = check_target(path)
    try:
        with atomic_write(target) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise _not_writable(path, str(error.strerror)) from error


def _not_writable(path: Path | str, found: str) -> ProfileError:
    return ProfileError(
        "SPY782",
        f"cannot write {path}",
        expected="a file in a directory that may be written",
        found=found,
    )


FORM = 2
"""Version of the object."""
Object = dict[str, Any]


def profile_object(profile: ProfileData) -> Object:
    """Everything the table and the lines under it say."""
    return {
        "form": FORM,
        "machine": profile.machine.name,
        "cost_model": profile.cost_model,
        "overlap": str(profile.overlap),
        "executes": [_row_object(row) for row in execute_rows(profile)],
        "kernels": [
            _row_object(row) | {"launches": kernel.launches, "lx": _lx_object(kernel)}
            for row, kernel in zip(kernel_rows(profile), profile.kernels, strict=True)
        ],
        "sources": [_source_object(row) for row in source_rows(profile)],
        "collectives": [collective_object(row) for row in collective_rows(profile)],
        "totals": totals_object(profile),
        "hbm": None if profile.hbm is None else _hbm_object(profile.hbm),
        "on_host": [asdict(each) for each in profile.on_host],
    }


def _source_object(row: SourceRow) -> Object:
    """What a line of the user's program takes."""
    return {
        "places": [place_object(place) for place in row.places],
        "ops": list(row.ops),
        "executes": row.executes,
        "time_ns": row.time_ns,
        "share": row.share,
        **row.counters.by_name,
    }


def _hbm_object(occupancy: HbmOccupancy) -> Object:
    """Bytes allocated in the regions that were used, from each moment to the next."""
    thin = occupancy.thinned()
    by_region = hbm_counters(thin.allocated_bytes)
    return {
        "peak_bytes": occupancy.peak_bytes,
        "peak_ns": occupancy.peak_ns,
        "region_peak_bytes": {name: int(each.max()) for name, each in by_region.items()},
        "time_ns": thin.time_ns.tolist(),
        "allocated_bytes": {name: each.tolist() for name, each in by_region.items()},
    }


def _lx_object(kernel: KernelProfile) -> Object:
    """Bytes of a scratchpad alive in one launch, from each moment to the next."""
    live_bytes, begin_ns = kernel.model.lx_live_bytes, kernel.model.begin_ns
    # Only moments of change: loops repeat the same bytes thousands of times.
    changes = np.flatnonzero(np.diff(live_bytes, prepend=-1))
    return {
        "peak_bytes": kernel.lx_peak_bytes,
        "time_ns": begin_ns[changes].tolist(),
        "live_bytes": live_bytes[changes].tolist(),
    }


def totals_object(profile: ProfileData) -> Object:
    """Sums over everything."""
    return {
        "launches": len(profile.launches),
        "executes": sum(len(kernel.executes) * kernel.launches for kernel in profile.kernels),
        **profile.counters.by_name,
        "compute_ns": profile.compute_ns,
        "launch_ns": profile.launch_ns,
        "copied_in_bytes": profile.copied_bytes(TaskKind.COPY_IN),
        "copied_in_ns": profile.copied_ns(TaskKind.COPY_IN),
        "copied_out_bytes": profile.copied_bytes(TaskKind.COPY_OUT),
        "copied_out_ns": profile.copied_ns(TaskKind.COPY_OUT),
        "makespan_ns": profile.makespan_ns,
        "busy_ns": {str(r): profile.timeline.busy_ns(r) for r in Resource},
        "core_busy_ns": profile.core_busy_ns.tolist(),
        "imbalance": profile.per_core.imbalance,
        "per_core": _per_core_object(profile.per_core),
        "lx_peak_bytes": profile.lx_peak_bytes,
        "hbm_peak_bytes": None if profile.hbm is None else profile.hbm.peak_bytes,
    }


def _per_core_object(cores: CoreBalance) -> Object:
    """Counts of all cores by name, in order of the cores."""
    return {name: each.tolist() for name, each in cores.by_name.items()}


def _row_object(row: ProfileRow) -> Object:
    return {
        "label": row.label,
        "kernel": row.kernel,
        "op": row.op,
        "shape": row.shape,
        "cores": row.cores,
        "time_ns": row.time_ns,
        "share": row.share,
        "bound_by": row.bound,
        "hbm_gbps": row.hbm_gbps,
        "hbm_roof_gbps": row.hbm_roof,
        "macs_per_ns": row.macs_per_ns,
        "mac_roof_per_ns": row.mac_roof,
        "lx_reuse": row.lx_reuse,
        "sources": [place_object(place) for place in row.places],
        **row.counters.by_name,
        "imbalance": row.per_core.imbalance,
        "per_core": _per_core_object(row.per_core),
    }


JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ComparedQuantity:
    """One quantity of both runs, in the unit ``text`` shows."""

    name: str
    first: float
    second: float
    text: Callable[[float], str]

    @property
    def ratio(self) -> float | None:
        """The second by the first; None where the first is 0."""
        return self.second / self.first if self.first else None


def read_kept_run(path: Path) -> JsonObject:
    """The profile in a file that ``spyre-run --profile --json`` wrote. ProfileError SPY781."""
    try:
        content = msgspec.json.decode(read_regular(path))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_kept_run(path, str(error)) from error
    profile = content.get("profile") if isinstance(content, dict) else None
    if not isinstance(profile, dict) or profile.get("form") != FORM:
        raise _no_kept_run(path, "an object without such a profile")
    try:
        msgspec.convert(profile, _KeptProfile)
    except msgspec.ValidationError as error:
        raise _no_kept_run(path, str(error)) from error
    return profile


class _KeptExecute(msgspec.Struct):
    op: str
    time_ns: float


class _KeptProfile(msgspec.Struct):
    """Of `profile_object`, what a comparison reads."""

    executes: list[_KeptExecute]
    totals: _KeptTotals


class _KeptTotals(msgspec.Struct):
    makespan_ns: float
    compute_ns: float
    launch_ns: float
    rdmem_bytes: float
    wrmem_bytes: float
    lx_read_bytes: float
    lx_written_bytes: float
    lx_peak_bytes: float
    hbm_peak_bytes: float | None
    imbalance: float | None
    ring_bytes: float
    copied_in_bytes: float
    copied_out_bytes: float
    launches: float
    executes: float
    executions: float


def _no_kept_run(path: Path, found: str) -> ProfileError:
    return ProfileError(
        "SPY781",
        "the file is no kept run",
        JsonLocation(str(path), "$.profile"),
        expected="what spyre-run --profile --json printed",
        found=found,
    )


def compare_profiles(first: JsonObject, second: JsonObject) -> tuple[ComparedQuantity, ...]:
    """Lines of two profiles, as `profile_object` has them."""
    a, b = first["totals"], second["totals"]
    sums = tuple(ComparedQuantity(name, of(a), of(b), text) for name, of, text in QUANTITIES)
    return (*sums, *_operations(first, second))


def _number_text(value: float) -> str:
    return f"{value:,.0f}"


def _ratio_text(value: float) -> str:
    return f"{value:.3g}"


def _bytes_text(value: float) -> str:
    return format_bytes(round(value))


QUANTITIES: tuple[tuple[str, Callable[[JsonObject], float], Callable[[float], str]], ...] = (
    ("from first to last", lambda t: t["makespan_ns"], time_text),
    ("on the cores", lambda t: t["compute_ns"], time_text),
    ("launching", lambda t: t["launch_ns"], time_text),
    ("HBM read", lambda t: t["rdmem_bytes"], _bytes_text),
    ("HBM written", lambda t: t["wrmem_bytes"], _bytes_text),
    ("HBM bytes", lambda t: t["rdmem_bytes"] + t["wrmem_bytes"], _bytes_text),
    ("LX bytes", lambda t: t["lx_read_bytes"] + t["lx_written_bytes"], _bytes_text),
    ("LX peak of a core", lambda t: t["lx_peak_bytes"], _bytes_text),
    ("HBM allocated at most", lambda t: t["hbm_peak_bytes"] or 0, _bytes_text),
    ("busiest core over mean", lambda t: t["imbalance"] or 0.0, _ratio_text),
    ("ring bytes", lambda t: t["ring_bytes"], _bytes_text),
    ("copied to the card", lambda t: t["copied_in_bytes"], _bytes_text),
    ("copied to the host", lambda t: t["copied_out_bytes"], _bytes_text),
    ("launches", lambda t: t["launches"], _number_text),
    ("executes", lambda t: t["executes"], _number_text),
    ("executions", lambda t: t["executions"], _number_text),
)
"""What is compared of the sums: name, value of ``totals``, text."""


def _operations(first: JsonObject, second: JsonObject) -> tuple[ComparedQuantity, ...]:
    """Time per operation, in order of appearance."""
    times = [_time_by_operation(profile) for profile in (first, second)]
    names = dict.fromkeys((*times[0], *times[1]))
    return tuple(
        ComparedQuantity(
            f"time of {name}", times[0].get(name, 0.0), times[1].get(name, 0.0), time_text
        )
        for name in names
    )


def _time_by_operation(profile: Mapping[str, Any]) -> dict[str, float]:
    times: dict[str, float] = {}
    for row in profile["executes"]:
        times[row["op"]] = times.get(row["op"], 0.0) + row["time_ns"]
    return times


def comparison_table(lines: tuple[ComparedQuantity, ...], first: str, second: str) -> Table:
    """A rich table; B/A below 1 is less in the second run."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False)
    for column in ("", f"A: {first}", f"B: {second}", "B - A", "B/A"):
        table.add_column(column, justify="right" if column else "left", overflow="fold")
    for line in lines:
        table.add_row(line.name, line.text(line.first), line.text(line.second), *_change(line))
    return table


def _change(line: ComparedQuantity) -> tuple[str, str]:
    change = line.second - line.first
    sign = "-" if change < 0 else "+"
    shown = f"{sign}{line.text(abs(change))}" if change else "="
    return shown, "-" if line.ratio is None else f"{line.ratio:.3g}"


def comparison_object(lines: tuple[ComparedQuantity, ...]) -> list[JsonObject]:
    """The same for ``--json``."""
    return [
        {"name": each.name, "a": each.first, "b": each.second, "ratio": each.ratio}
        for each in lines
    ]
