"""A profile as a JSON object: the rows of the table, sums, machine and model.

Keys are stable; docs/profiling.md lists them. A file that holds such an object is a *kept run*,
which ``spyre-run --compare`` takes.
"""

from __future__ import annotations

from typing import Any

from spyre.hw.cost.timeline.task import Kind, Resource
from spyre.hw.counters import Counters
from spyre.runtime.profile.profile_data import ProfileData
from spyre.runtime.profile.rows import Row, execute_rows, kernel_rows

FORM = 1
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
            _row_object(row) | {"launches": kernel.launches}
            for row, kernel in zip(kernel_rows(profile), profile.kernels, strict=True)
        ],
        "totals": totals_object(profile),
    }


def totals_object(profile: ProfileData) -> Object:
    """Sums over everything."""
    return {
        "launches": len(profile.launches),
        "executes": sum(len(kernel.executes) * kernel.launches for kernel in profile.kernels),
        **counters_object(profile.counters),
        "compute_ns": profile.compute_ns,
        "launch_ns": profile.launch_ns,
        "copied_in_bytes": profile.copied_bytes(Kind.COPY_IN),
        "copied_in_ns": profile.copied_ns(Kind.COPY_IN),
        "copied_out_bytes": profile.copied_bytes(Kind.COPY_OUT),
        "copied_out_ns": profile.copied_ns(Kind.COPY_OUT),
        "makespan_ns": profile.makespan_ns,
        "busy_ns": {str(r): profile.timeline.busy_ns(r) for r in Resource},
        "core_busy_ns": profile.core_busy_ns.tolist(),
        "lx_peak_bytes": profile.lx_peak_bytes,
    }


def _row_object(row: Row) -> Object:
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
        **counters_object(row.counters),
    }


def counters_object(counters: Counters) -> Object:
    """Counters by name, and what follows from them."""
    named = zip(Counters.__slots__, counters.values, strict=True)
    return {**dict(named), "sticks": counters.sticks}
