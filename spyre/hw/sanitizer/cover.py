"""Outputs left uncovered: sticks that hold host elements and that no execute of the run wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spyre.errors import Severity, SourceLocation
from spyre.hw import check_table as ct
from spyre.hw.sanitizer.checks import Check
from spyre.hw.sanitizer.findings import SanitizerFinding, count_of
from spyre.hw.sanitizer.shadow import (
    LaunchEvent,
    RecordLog,
    ShadowMemory,
    UInt32Array,
    Upload,
    describe_writer,
    locate_execution,
)
from spyre.hw.spec import STICK_BYTES
from spyre.layout import host_coordinates_of_stick, transfer_geometry

if TYPE_CHECKING:
    from spyre.hw.device import DeviceTensor


@dataclass(frozen=True)
class Expected:
    """An output and the sticks of it that must be written (bool, ``device_size[:-1]``)."""

    tensor: DeviceTensor
    sticks: npt.NDArray[np.bool_]


def check_cover(
    expected: Expected, shadow: ShadowMemory, log: RecordLog, first_record: int
) -> Iterator[SanitizerFinding]:
    """At most one finding. ``first_record``: the first of the run."""
    tensor = expected.tensor
    words = shadow.of_range(tensor.address_bytes, tensor.size_bytes)
    records = words >> ct.CORE_BITS
    bare = expected.sticks & (records < first_record).reshape(expected.sticks.shape)
    if not bare.any():
        return
    stick = tuple(int(i) for i in np.argwhere(bare)[0])
    at = int(np.ravel_multi_index(stick, expected.sticks.shape))
    geometry = transfer_geometry(tensor.layout, tensor.sizes, tensor.strides)
    host = host_coordinates_of_stick(geometry, stick)
    missing, total = int(bare.sum()), int(expected.sticks.sum())
    last = _last_execute(words, log, first_record)
    yield SanitizerFinding(
        check=Check.COVER,
        code="SPY720",
        severity=Severity.ERROR,
        message=f"output {tensor.name} is not written completely",
        sdsc=last.sdsc,
        execute=last.execute,
        source=last.source,
        tensor=tensor.name,
        coordinate=tuple((f"dim {k}", i) for k, i in enumerate(host)),
        address_bytes=tensor.address_bytes + at * STICK_BYTES,
        sticks=missing,
        expected=f"all {count_of(total, 'stick')} with elements written by an execute",
        found=f"{count_of(missing, 'stick')} never written{last.remark}",
        last_writer=_host_writer(log, int(words[at])),
    )


@dataclass(frozen=True, slots=True)
class _LastExecute:
    """The execute that wrote any of the tensor last, where there is one."""

    sdsc: str = "bundle.mlir"
    execute: int | None = None
    source: SourceLocation | None = None
    remark: str = ", and no execute writes any of it"


def _last_execute(words: UInt32Array, log: RecordLog, first_record: int) -> _LastExecute:
    word = int(words.max(initial=0))
    if word >> ct.CORE_BITS < first_record:
        return _LastExecute()
    event, execution = log.find(word >> ct.CORE_BITS)
    assert isinstance(event, LaunchEvent)
    static, _ = locate_execution(event.linked, execution)
    execute, label = event.linked.program.executes[static], event.label
    return _LastExecute(
        label.sdsc(execute.sdsc_filename), label.first_execute + static, execute.location, ""
    )


def _host_writer(log: RecordLog, word: int) -> str:
    if word == 0:
        return ""
    event, _ = log.find(word >> ct.CORE_BITS)
    return describe_writer(log, word) if isinstance(event, Upload) else "an earlier run"
