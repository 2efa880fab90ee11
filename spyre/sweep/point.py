"""Measure one task of a sweep, with a record per machine. Runs in worker processes.

Errors are not raised but written into the column ``error`` of the records.
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
from spyre.sweep.definition import AUTO_TILES, SweepTarget, SweepTask, read_tiles

if TYPE_CHECKING:
    from spyre.hw.cost import MachineSpec, Model
    from spyre.hw.counters import LaunchCounts


def load_function(target: SweepTarget) -> Callable[..., Any]:
    """Import the function to compile. SweepError SPY744 if its module or it does not exist."""
    module = _module(target)
    function: Callable[..., Any] | None = getattr(module, target.function, None)
    if not callable(function):
        found = ", ".join(name for name in vars(module) if not name.startswith("_"))
        raise SweepError("SPY744", f"{target.path} has no function {target.function}", found=found)
    return function


def _module(target: SweepTarget) -> ModuleType:
    if not target.is_file:
        try:
            return importlib.import_module(target.path)
        except ModuleNotFoundError as error:
            raise SweepError(
                "SPY744", f"there is no module {target.path}", found=str(error)
            ) from error
    # A file may be outside every package.
    return import_file(target.path, f"spyre_sweep_{Path(target.path).stem}")


Record = dict[str, Any]
MEASURED = (
    "modelled_us",
    "spread",
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
"""The measured columns; a cell without a value is empty."""
_one_at_a_time = threading.Lock()
"""Only one function is compiled at a time in a worker with several threads."""
SETTING_NAMES = {"cores": "sencores", "lx_kept": "lx_fraction_kept"}


def measure(task: SweepTask) -> list[Record]:
    """Return a record per machine of ``task``. ``seconds``: host time of the whole task."""
    with _one_at_a_time:
        begin = time.perf_counter()
        records = _measured(task)
        seconds = round(time.perf_counter() - begin, 3)
    return complete(task, [{**record, "seconds": seconds} for record in records])


def _measured(task: SweepTask) -> list[Record]:
    try:
        counts, host_us = _counts(task)
    except Exception as error:  # a worker reports every exception in its records
        return [failed(error)] * len(task.machines)
    return [_modelled(task, dict(values), counts, host_us) for values in task.machines]


def complete(task: SweepTask, records: list[Record]) -> list[Record]:
    """Return ``records``, one per machine of ``task``, with the columns that identify the point."""
    empty = dict.fromkeys(MEASURED, "")
    return [
        {"subject": task.target.text, **dict(task.settings), **dict(machine),
         "model": task.model, **empty, **record}
        for machine, record in zip(task.machines, records, strict=True)
    ]  # fmt: skip


def failed(error: BaseException) -> Record:
    """Return the record of a point that failed with ``error``."""
    if isinstance(error, SpyreError):
        return {"error": f"{error.code}: {error.finding.message}"}
    lines = str(error).splitlines()
    return {"error": f"{type(error).__name__}: {lines[0] if lines else ''}"}


def _modelled(
    task: SweepTask, values: Mapping[str, Any], counts: LaunchCounts, host_us: float | None
) -> Record:
    from spyre.hw.cost import kernel_ns

    try:
        machine = machine_of(task, values)
        time_of = kernel_ns(counts.operations, machine, cast("Model", task.model))
    except Exception as error:  # the other machines of the task are still measured
        return failed(error)
    return {
        "modelled_us": round(time_of.total_ns / 1e3, 4),
        "spread": time_of.spread,
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
    """Return the machine of a point. SweepError SPY740 for an unknown constant."""
    from spyre.hw.cost import default_machine, load_machine

    machine = load_machine(task.machine_file) if task.machine_file else default_machine()
    for name in values:
        if name not in machine.constants:
            raise SweepError("SPY740", f"{name} is not a constant of a machine", found=name)
    return machine.with_values(values, "sweep")


def _counts(task: SweepTask) -> tuple[LaunchCounts, float | None]:
    if not task.target.function:
        return _bundle_counts(task.target, task.host_rounds)
    return _function_counts(task.target, dict(task.settings), task.host_rounds)


def _bundle_counts(target: SweepTarget, rounds: int) -> tuple[LaunchCounts, float | None]:
    """Return the counts of the linked bundle, which runs only if its host time is requested."""
    from spyre.hw.counters import LaunchCounts
    from spyre.hw.device import Device
    from spyre.runtime.run import Session

    session = Session(Device())
    with session.placed(session.describe(target.path)) as placement:
        linked = placement.link(0)
        counts = LaunchCounts([linked.view])
        run = partial(session.device.executor.run, linked)
        return counts, _median_us(run, rounds)


def _function_counts(
    target: SweepTarget, settings: Mapping[str, Any], rounds: int
) -> tuple[LaunchCounts, float | None]:
    from spyre.torch_backend.inductor import design_point as design

    tiles = str(settings.get("tiles", "none"))
    options = {SETTING_NAMES[name]: v for name, v in settings.items() if name in SETTING_NAMES}
    if tiles == AUTO_TILES:
        options["auto_tile"] = True
    examples = [design.ExampleTensor(*tensor) for tensor in target.tensors]
    tensors = design.example_tensors(examples)
    compiled = design.compiled_with(load_function(target), options, read_tiles(tiles))
    try:
        counts = design.counted_call(compiled, tensors)
        return counts, _median_us(partial(design.call_seconds, compiled, tensors), rounds)
    finally:
        design.forget_compiled()


def _median_us(call: Callable[[], object], rounds: int) -> float | None:
    """Return the median time of ``rounds`` calls in microseconds; a first call is not counted."""
    if not rounds:
        return None
    call()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6
