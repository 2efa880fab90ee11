"""Rows of a profile's table: per execute, per kind of execute or per kernel, whichever fits.

The text table, the JSON object and the HTML page show the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

from spyre.hw.counters import Counters
from spyre.runtime.profile.core_balance import CoreBalance
from spyre.runtime.profile.profile_data import (
    LAUNCH,
    ExecuteProfile,
    KernelProfile,
    ProfileData,
    Roofs,
    balance_of,
)

MAX_ROWS = 24
"""More executes than this are shown by kind, or by kernel."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """``label``: number of the execute, or what the row stands for. ``time_ns``: all runs in all
    launches, without launching. ``share``: part of the time of all kernels, launching included.
    ``mac_roof``: multiply-adds per nanosecond the cores could do in the formats used. ``per_core``:
    what each core did.
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

    @property
    def hbm_bytes(self) -> int:
        """Bytes over the memory interface."""
        return self.counters.rdmem_bytes + self.counters.wrmem_bytes

    @property
    def lx_bytes(self) -> int:
        """Bytes to and from the scratchpads."""
        return self.counters.lx_read_bytes + self.counters.lx_written_bytes

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


def rows_of(profile: ProfileData, every: bool = False) -> tuple[Row, ...]:
    """Rows in program order, as many as fit a screen unless ``every`` is asked for."""
    found = list(profile.executes)
    if every or len(found) <= MAX_ROWS:
        return execute_rows(profile)
    if len(profile.kernels) > 1:
        return kernel_rows(profile)
    kinds: dict[tuple[str, str, int], list[ExecuteProfile]] = {}
    for _, e in found:
        kinds.setdefault((e.model.op, e.model.shape, len(e.model.cores)), []).append(e)
    name = profile.kernels[0].name
    return tuple(_row(profile, f"{len(same)} of", name, same) for same in kinds.values())


def execute_rows(profile: ProfileData) -> tuple[Row, ...]:
    """A row per execute statement."""
    return tuple(
        _row(profile, str(execute.index), kernel.name, [execute])
        for kernel, execute in profile.executes
    )


def kernel_rows(profile: ProfileData) -> tuple[Row, ...]:
    """A row per kernel."""
    return tuple(_kernel_row(profile, kernel) for kernel in profile.kernels)


def _kernel_row(profile: ProfileData, kernel: KernelProfile) -> Row:
    ops = list(dict.fromkeys(e.model.op for e in kernel.executes))
    shape = kernel.executes[0].model.shape if len(kernel.executes) == 1 else ", ".join(ops[:6])
    return replace(
        _row(profile, f"{kernel.launches}×", kernel.name, kernel.executes),
        op=ops[0] if len(ops) == 1 else f"{len(kernel.executes)} executes",
        shape=shape + (", …" if len(ops) > 6 else ""),
        bound=kernel.bound,
    )


def _row(profile: ProfileData, label: str, kernel: str, executes: Sequence[ExecuteProfile]) -> Row:
    """A row of executes that are alike."""
    time_ns = sum(e.total_ns for e in executes)
    counters = reduce(add, (e.counters for e in executes), Counters())
    longest = max(executes, key=lambda e: e.total_ns, default=None)
    return Row(
        label,
        kernel,
        longest.model.op if longest is not None else "",
        longest.model.shape if longest is not None else "",
        len({core for e in executes for core in e.model.cores}),
        counters.executions,
        time_ns,
        time_ns / profile.kernel_ns if profile.kernel_ns else 0.0,
        str(longest.bound) if longest is not None else LAUNCH,
        counters,
        Roofs.of(profile.machine).hbm_gbps,
        _mac_roof(profile, executes),
        balance_of(executes),
    )


def total_row(profile: ProfileData) -> Row:
    """Everything the cores did."""
    executes = [execute for _, execute in profile.executes]
    row = _row(profile, "", "", executes)
    return replace(row, op="all executes", shape="", bound=_longest(profile.kernels))


def _longest(kernels: Sequence[KernelProfile]) -> str:
    """What most of the time waits for, launching counted as such."""
    times: dict[str, float] = {"launch": sum(k.launch_ns * k.launches for k in kernels)}
    for execute in (e for k in kernels for e in k.executes):
        times[execute.bound] = times.get(execute.bound, 0.0) + execute.total_ns
    return str(max(times, key=lambda bound: times[bound]))


def _mac_roof(profile: ProfileData, executes: Iterable[ExecuteProfile]) -> float:
    """The highest peak among the formats of the products."""
    formats = {e.counts.mac_format for e in executes if e.counts.multiply_adds}
    return max((Roofs.of(profile.machine, f).macs_per_ns for f in formats), default=0.0)
