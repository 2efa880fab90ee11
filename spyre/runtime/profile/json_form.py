"""A profile as a JSON object: the rows of the table, sums, machine and model.

Keys are stable; docs/profiling.md lists them. A file that holds such an object is a *kept run*,
which ``spyre-run --compare`` takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spyre.hw.cost.timeline.task import Kind, Resource
from spyre.hw.counters import Counters
from spyre.runtime.flex.trace_counters import hbm_counters
from spyre.runtime.profile.core_balance import CoreBalance
from spyre.runtime.profile.hbm_occupancy import HbmOccupancy
from spyre.runtime.profile.profile_data import KernelProfile, ProfileData
from spyre.runtime.profile.rows import Row, execute_rows, kernel_rows

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
        "totals": totals_object(profile),
        "hbm": None if profile.hbm is None else _hbm_object(profile.hbm),
    }


def _hbm_object(found: HbmOccupancy) -> Object:
    """Bytes allocated in the regions that were used, from each moment to the next."""
    thin = found.thinned()
    by_region = hbm_counters(thin.allocated_bytes)
    return {
        "peak_bytes": found.peak_bytes,
        "peak_ns": found.peak_ns,
        "region_peak_bytes": {name: int(each.max()) for name, each in by_region.items()},
        "time_ns": thin.time_ns.tolist(),
        "allocated_bytes": {name: each.tolist() for name, each in by_region.items()},
    }


def _lx_object(kernel: KernelProfile) -> Object:
    """Bytes of a scratchpad alive in one launch, from each moment to the next."""
    live_bytes, begin_ns = kernel.model.lx_live_bytes, kernel.model.executions.begin_ns
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
        "imbalance": profile.per_core.imbalance,
        "per_core": _per_core_object(profile.per_core),
        "lx_peak_bytes": profile.lx_peak_bytes,
        "hbm_peak_bytes": None if profile.hbm is None else profile.hbm.peak_bytes,
    }


def _per_core_object(found: CoreBalance) -> Object:
    """Counts of all cores by name, in order of the cores."""
    return {name: each.tolist() for name, each in found.by_name.items()}


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
        "imbalance": row.per_core.imbalance,
        "per_core": _per_core_object(row.per_core),
    }


def counters_object(counters: Counters) -> Object:
    """Counters by name, and what follows from them."""
    named = zip(Counters.__slots__, counters.values, strict=True)
    return {**dict(named), "sticks": counters.sticks}
