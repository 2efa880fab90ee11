"""Files of a profile: the profile as a JSON object, reading it again, and the comparison of two.

Keys are stable; docs/profiling.md lists them. A file with such an object is a *kept run*, which
``spyre-run --compare`` accepts. Files are written completely or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from spyre.errors import JsonLocation, ProfileError
from spyre.files import read_regular, replaced_file, writable_target
from spyre.hw.cost import Resource, TaskKind
from spyre.runtime.drawing import Column, text_table
from spyre.runtime.profile.collectives import collective_object, collective_rows
from spyre.runtime.profile.kernels import CoreBalance, KernelProfile
from spyre.runtime.profile.profile import HbmOccupancy, Profile
from spyre.runtime.profile.table import (
    ProfileRow,
    SourceRow,
    execute_rows,
    kernel_rows,
    place_object,
    source_rows,
    time_text,
    total_row,
)
from spyre.runtime.trace import hbm_counters
from spyre.runtime.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table


def check_target(path: Path | str) -> Path:
    """Return the path to write, symbolic links resolved. ProfileError SPY782 if it is refused."""
    return writable_target(path, partial(_not_writable, path))


def write_whole(path: Path | str, content: bytes) -> None:
    """Write ``content`` to a file, completely or not at all. ProfileError SPY782 if it fails."""
    with replaced_file(path, partial(_not_writable, path)) as temporary:
        temporary.write_bytes(content)


def _not_writable(path: Path | str, found: str) -> ProfileError:
    expected = "a file in a directory that may be written"
    return ProfileError("SPY782", f"cannot write {path}", expected=expected, found=found)


FORM = 2
"""Version of the object."""
Object = dict[str, Any]
"""A JSON object."""


def profile_object(profile: Profile) -> Object:
    """Return the profile as a JSON object."""
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
    """Return the costs of a line of the user's program."""
    return {
        "places": [place_object(place) for place in row.places],
        "ops": list(row.ops),
        "executes": row.executes,
        "time_ns": row.time_ns,
        "share": row.share,
        **row.counters.by_name,
    }


def _hbm_object(occupancy: HbmOccupancy) -> Object:
    """Return the bytes allocated in each used region, from each moment to the next."""
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
    """Return the live bytes of a scratchpad in one launch, from each moment to the next."""
    live_bytes, begin_ns = kernel.lx_live_bytes, kernel.begin_ns
    # Only moments of change: loops repeat the same bytes thousands of times.
    changes = np.flatnonzero(np.diff(live_bytes, prepend=-1))
    return {
        "peak_bytes": kernel.lx_peak_bytes,
        "time_ns": begin_ns[changes].tolist(),
        "live_bytes": live_bytes[changes].tolist(),
    }


def totals_object(profile: Profile) -> Object:
    """Return the sums over all kernels and copies."""
    return {
        "launches": len(profile.launches),
        "executes": sum(len(kernel.executes) * kernel.launches for kernel in profile.kernels),
        **profile.counters.by_name,
        "compute_ns": profile.compute_ns,
        "spread": total_row(profile).spread,
        "launch_ns": profile.launch_ns,
        "copied_in_bytes": profile.copied_bytes(TaskKind.COPY_IN),
        "copied_in_ns": profile.copied_ns(TaskKind.COPY_IN),
        "copied_out_bytes": profile.copied_bytes(TaskKind.COPY_OUT),
        "copied_out_ns": profile.copied_ns(TaskKind.COPY_OUT),
        "copied_out_spread": profile.copy_out_spread,
        "makespan_ns": profile.makespan_ns,
        "busy_ns": {str(r): profile.timeline.busy_ns(r) for r in Resource},
        "core_busy_ns": profile.per_core.busy_ns.tolist(),
        "imbalance": profile.per_core.imbalance,
        "per_core": _per_core_object(profile.per_core),
        "lx_peak_bytes": profile.lx_peak_bytes,
        "hbm_peak_bytes": None if profile.hbm is None else profile.hbm.peak_bytes,
    }


def _per_core_object(cores: CoreBalance) -> Object:
    """Return the counters by name, each a list with a number per core."""
    return {name: each.tolist() for name, each in cores.by_name.items()}


_ROW_FIELDS = ("label", "kernel", "op", "shape", "cores", "time_ns", "share")


def _row_object(row: ProfileRow) -> Object:
    return {
        **{name: getattr(row, name) for name in _ROW_FIELDS},
        "spread": row.spread,
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


class ComparedQuantity(msgspec.Struct, frozen=True):
    """One quantity of both runs. ``text`` formats it with its unit."""

    name: str
    first: float
    second: float
    text: Callable[[float], str]

    @property
    def ratio(self) -> float | None:
        """The second divided by the first; None if the first is 0."""
        return self.second / self.first if self.first else None


def read_kept_run(path: Path) -> Object:
    """Read the profile from a file of ``spyre-run --profile --json``. ProfileError SPY781."""
    try:
        content = msgspec.json.decode(read_regular(path))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_kept_run(path, str(error)) from error
    profile = content.get("profile") if isinstance(content, dict) else None
    if not isinstance(profile, dict) or profile.get("form") != FORM:
        raise _no_kept_run(path, "an object without such a profile")
    try:
        totals = msgspec.convert(profile, _KeptProfile).totals
        for _, total, _ in QUANTITIES:
            msgspec.convert(total(totals), float)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise _no_kept_run(path, str(error)) from error
    return profile


class _KeptExecute(msgspec.Struct):
    op: str
    time_ns: float


class _KeptProfile(msgspec.Struct):
    """The fields of `profile_object` that a comparison reads."""

    executes: list[_KeptExecute]
    totals: dict[str, Any]


def _no_kept_run(path: Path, found: str) -> ProfileError:
    message = "the file is no kept run"
    location = JsonLocation(str(path), "$.profile")
    expected = "output of spyre-run --profile --json"
    return ProfileError("SPY781", message, location, expected=expected, found=found)


def compare_profiles(first: Object, second: Object) -> tuple[ComparedQuantity, ...]:
    """Compare two profiles, objects of `profile_object`: sums, and the time of each operation."""
    a, b = first["totals"], second["totals"]
    sums = tuple(ComparedQuantity(name, of(a), of(b), text) for name, of, text in QUANTITIES)
    return (*sums, *_operations(first, second))


QUANTITIES: tuple[tuple[str, Callable[[Object], float], Callable[[float], str]], ...] = (
    ("from first to last", lambda t: t["makespan_ns"], time_text),
    ("on the cores", lambda t: t["compute_ns"], time_text),
    ("launching", lambda t: t["launch_ns"], time_text),
    ("HBM read", lambda t: t["rdmem_bytes"], format_bytes),
    ("HBM written", lambda t: t["wrmem_bytes"], format_bytes),
    ("HBM bytes", lambda t: t["rdmem_bytes"] + t["wrmem_bytes"], format_bytes),
    ("LX bytes", lambda t: t["lx_read_bytes"] + t["lx_written_bytes"], format_bytes),
    ("LX peak of a core", lambda t: t["lx_peak_bytes"], format_bytes),
    ("HBM allocated at most", lambda t: t["hbm_peak_bytes"] or 0, format_bytes),
    ("busiest core over mean", lambda t: t["imbalance"] or 0.0, "{:.3g}".format),
    ("ring bytes", lambda t: t["ring_bytes"], format_bytes),
    ("copied to the card", lambda t: t["copied_in_bytes"], format_bytes),
    ("copied to the host", lambda t: t["copied_out_bytes"], format_bytes),
    ("launches", lambda t: t["launches"], "{:,.0f}".format),
    ("executes", lambda t: t["executes"], "{:,.0f}".format),
    ("executions", lambda t: t["executions"], "{:,.0f}".format),
)
"""The compared sums: name, value from ``totals``, text."""


def _operations(first: Object, second: Object) -> tuple[ComparedQuantity, ...]:
    """Compare the time per operation, the largest change first."""
    times = [_time_by_operation(profile) for profile in (first, second)]
    names = dict.fromkeys((*times[0], *times[1]))
    compared = (
        ComparedQuantity(
            f"time of {name}", times[0].get(name, 0.0), times[1].get(name, 0.0), time_text
        )
        for name in names
    )
    return tuple(sorted(compared, key=lambda each: -abs(each.second - each.first)))


def _time_by_operation(profile: Mapping[str, Any]) -> dict[str, float]:
    times: dict[str, float] = {}
    for row in profile["executes"]:
        times[row["op"]] = times.get(row["op"], 0.0) + row["time_ns"]
    return times


def comparison_table(lines: tuple[ComparedQuantity, ...]) -> Table:
    """The `rich` table of the runs A and B: green where B is smaller, red where it is larger."""
    columns: tuple[Column[ComparedQuantity], ...] = (
        Column("", lambda line: line.name),
        Column("A", lambda line: line.text(line.first), lambda line: line.first),
        Column("B", lambda line: line.text(line.second), lambda line: line.second),
        Column("B - A", _change_text, lambda line: line.second - line.first),
        Column("B/A", lambda line: "-" if line.ratio is None else f"{line.ratio:.3g}",
               lambda line: line.ratio),
    )  # fmt: skip
    table = text_table(columns, lines, {column.name for column in columns})
    for row, line in zip(table.rows, lines, strict=True):
        if line.second != line.first:
            row.style = "green" if line.second < line.first else "red"
    return table


def _change_text(line: ComparedQuantity) -> str:
    change = line.second - line.first
    sign = "-" if change < 0 else "+"
    return f"{sign}{line.text(abs(change))}" if change else "="


def comparison_object(lines: tuple[ComparedQuantity, ...]) -> list[Object]:
    """Return the comparison as objects for ``--json``."""
    return [
        {"name": each.name, "a": each.first, "b": each.second, "ratio": each.ratio}
        for each in lines
    ]
