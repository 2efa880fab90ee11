"""Text of a spyrecode.json: the inverse of :mod:`.spyrecode_file`."""

from __future__ import annotations

from typing import Any

import msgspec

from spyre.runtime.spyrecode.commands import (
    Allocate,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    ExecutionCommand,
    Hcm,
    InitTransfer,
    PreparationCommand,
    SpyreCode,
)
from spyre.runtime.spyrecode.spyrecode_file import EXECUTION_PLAN, FILES_KEY, PREPARATION_PLAN


def format_spyrecode(code: SpyreCode) -> bytes:
    """The file's text, with the keys the runtime's code reads; findings are not part of it."""
    document: dict[str, Any] = {
        PREPARATION_PLAN: [_command(command) for command in code.preparation],
        EXECUTION_PLAN: [_command(command) for command in code.execution],
    }
    if code.files:
        document[FILES_KEY] = {
            name: {"size": str(record.size_bytes), "sha256": record.sha256}
            for name, record in code.files.items()
        }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _command(command: PreparationCommand | ExecutionCommand) -> dict[str, Any]:
    return {"command": type(command).__name__, "properties": _properties(command)}


def _properties(command: PreparationCommand | ExecutionCommand) -> dict[str, Any]:
    match command:
        case Allocate(size):
            return {"size": str(size)}
        case InitTransfer(name, address, size):
            return {"init_bin_file": name, "dev_ptr": str(address), "size": str(size)}
        case ComputeOnHost():
            return {
                "ihandle": command.ihandle,
                "ishape": [str(extent) for extent in command.ishape],
                "ohandle": command.ohandle,
                "size": str(command.size_bytes),
                "hcm": _hcm(command.hcm),
            }
        case DataTransfer(direction, handle, size, address):
            return {
                "dirn": direction.value,
                "host_handle": handle,
                "size": str(size),
                "dev_ptr": str(address),
            }
        case ComputeOnDevice(address, name):
            found = {"job_bin_ptr": str(address)}
            return found if name is None else {**found, "name": name}


def _hcm(hcm: Hcm) -> dict[str, Any]:
    found: dict[str, Any] = {
        "vdci": hcm.vdci,
        "senConstants": list(hcm.sen_constants),
        **hcm.others,
    }
    if hcm.symbols is not None:
        found["symbols"] = msgspec.to_builtins(hcm.symbols)
    return found
