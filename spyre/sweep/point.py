"""One task of a sweep, measured: a record per machine. Runs in worker processes.

Nothing is raised: what goes wrong is in the column ``error`` of the records.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from spyre.errors import SpyreError, SweepError
from spyre.files import import_file
from spyre.sweep.definition import AUTO_TILES, BundleSubject, FunctionSubject, SweepTask, read_tiles

if TYPE_CHECKING:
    from spyre.hw.cost import MachineSpec, Model
    from spyre.hw.counters import LaunchCounts


def load_function(subject: FunctionSubject) -> Callable[..., Any]:
    """What is compiled. SweepError SPY744 if there is no such module or function."""
    module = _module(subject)
    function = getattr(module, subject.function, None)
    if not callable(function):
        raise SweepError(
            "SPY744",
            f"{subject.module} has no function {subject.function}",
            found=", ".join(name for name in vars(module) if not name.startswith("_")),
        )
    typed: Callable[..., Any] = function
    return typed


def _module(subject: FunctionSubject) -> ModuleType:
    if not subject.is_file:
        try:
            return importlib.import_module(subject.module)
        except ModuleNotFoundError as error:
            raise SweepError(
                "SPY744", f"there is no module {subject.module}", found=str(error)
            ) from error
    # Sweeps also name files that are in no package.
    return import_file(subject.module, f"spyre_sweep_{Path(subject.module).stem}")


Record = dict[str, Any]
MEASURED = (
    "modelled_us",
    "bound",
    "hbm_bytes",
    "lx_peak_bytes",
    "lx_high_water_bytes",
    "lx_fits",
    "cores_used",
    "launches",
    "executes",
    "host_us",
    "seconds",
    "error",
)
"""Columns of what was found; empty where there is none."""
_one_at_a_time = threading.Lock()
"""Workers with several threads: compiling is one function at a time."""
SETTING_NAMES = {
    "cores": "sencores",
    "lx_kept": "lx_fraction_kept",
    "planner": "work_division",
    "solver": "lx_solver",
}


def measure(task: SweepTask) -> list[Record]:
    """A record per machine of ``task``. ``seconds``: host time of the whole task."""
    with _one_at_a_time:
        begin = time.perf_counter()
        records = _measured(task)
        seconds = round(time.perf_counter() - begin, 3)
    return complete(task, [{**record, "seconds": seconds} for record in records])


def _measured(task: SweepTask) -> list[Record]:
    try:
        counts, host_us = _counts(task)
    except Exception as error:  # a worker reports whatever it meets
        return [failed(error)] * len(task.machines)
    weigh = [partial(_weighed, task, dict(values), counts, host_us) for values in task.machines]
    return [_guarded(one) for one in weigh]


def complete(task: SweepTask, records: list[Record]) -> list[Record]:
    """``records``, one per machine of ``task``, with the columns that say which point they are."""
    empty = dict.fromkeys(MEASURED, "")
    return [
        {"subject": task.subject.text, **dict(task.settings), **dict(machine),
         "model": task.model, **empty, **record}
        for machine, record in zip(task.machines, records, strict=True)
    ]  # fmt: skip


def failed(error: BaseException) -> Record:
    """The record of a point that gave an error."""
    if isinstance(error, SpyreError):
        return {"error": f"{error.code}: {error.finding.message}"}
    lines = str(error).splitlines()
    return {"error": f"{type(error).__name__}: {lines[0] if lines else ''}"}


def _guarded(call: Callable[[], Record]) -> Record:
    try:
        return call()
    except Exception as error:  # one machine's error is not the others'
        return failed(error)


def _weighed(
    task: SweepTask, values: Mapping[str, Any], counts: LaunchCounts, host_us: float | None
) -> Record:
    from spyre.hw.cost import kernel_ns

    machine = machine_of(task, values)
    time_of = kernel_ns(counts.operations, machine, cast("Model", task.model))
    return {
        "modelled_us": round(time_of.total_ns / 1e3, 4),
        "bound": str(time_of.bound),
        "hbm_bytes": counts.hbm_bytes,
        "lx_peak_bytes": counts.lx_peak_bytes,
        "lx_high_water_bytes": counts.lx_high_water_bytes,
        "lx_fits": counts.lx_high_water_bytes <= machine.hardware.lx_bytes,
        "cores_used": counts.cores,
        "launches": counts.launches,
        "executes": counts.executes,
        "host_us": "" if host_us is None else round(host_us, 2),
    }


def machine_of(task: SweepTask, values: Mapping[str, Any]) -> MachineSpec:
    """The machine a point is weighed on. SweepError SPY740 for a constant there is none of."""
    from spyre.errors import SweepError
    from spyre.hw.cost import default_machine, load_machine

    machine = load_machine(task.machine_file) if task.machine_file else default_machine()
    for name in values:
        if name not in machine.constants:
            raise SweepError("SPY740", f"{name} is no constant of a machine", found=name)
    return machine.with_values(values, "sweep")


def _counts(task: SweepTask) -> tuple[LaunchCounts, float | None]:
    if isinstance(task.subject, BundleSubject):
        return _bundle_counts(task.subject, task.host_rounds)
    return _function_counts(task.subject, dict(task.settings), task.host_rounds)


def _bundle_counts(subject: BundleSubject, rounds: int) -> tuple[LaunchCounts, float | None]:
    """Counts of the linked bundle, which is not run unless its host time is asked for."""
    from spyre.hw.counters import LaunchCounts
    from spyre.hw.device import Device
    from spyre.runtime.run import Session

    session = Session(Device())
    with session.placed(session.describe(subject.directory)) as placement:
        linked = placement.link(0)
        counts = LaunchCounts([linked.view])
        run = partial(session.device.executor.run, linked)
        return counts, _median_us(run, rounds)


def _function_counts(
    subject: FunctionSubject, settings: Mapping[str, Any], rounds: int
) -> tuple[LaunchCounts, float | None]:
    from spyre.torch_backend.inductor import design_point as design

    tiles = str(settings.get("tiles", "none"))
    options = {SETTING_NAMES[name]: v for name, v in settings.items() if name in SETTING_NAMES}
    if tiles == AUTO_TILES:
        options["auto_tile"] = True
    examples = [design.ExampleTensor(t.sizes, t.names, t.dtype) for t in subject.tensors]
    tensors = design.example_tensors(examples)
    compiled = design.compiled_with(load_function(subject), options, read_tiles(tiles))
    try:
        counts = design.counted_call(compiled, tensors)
        return counts, _median_us(partial(design.call_seconds, compiled, tensors), rounds)
    finally:
        design.forget_compiled()


def _median_us(call: Callable[[], object], rounds: int) -> float | None:
    """Median microseconds of ``rounds`` calls after a first one."""
    if not rounds:
        return None
    call()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6
