"""SpyreCode documents for tests."""

from __future__ import annotations

import copy
from typing import Any

BASE = 0x1C00000000
Document = dict[str, Any]

SYMBOLIC: Document = {
    "JobPreparationPlan": [
        {"command": "Allocate", "properties": {"size": "1024"}},
        {
            "command": "InitTransfer",
            "properties": {
                "init_bin_file": "init_binary.bin",
                "dev_ptr": str(BASE),
                "size": "512",
            },
        },
    ],
    "JobExecPlan": [
        {
            "command": "ComputeOnHost",
            "properties": {
                "ihandle": "",
                "ishape": ["2"],
                "ohandle": "correction",
                "size": "128",
                "hcm": {
                    "vdci": {},
                    "senConstants": [],
                    "symbols": [{"kind": "kernel", "arg_index": 0}, {"kind": "pool"}],
                },
            },
        },
        {
            "command": "DataTransfer",
            "properties": {
                "dirn": "false",
                "host_handle": "correction",
                "size": "128",
                "dev_ptr": str(BASE + 512),
            },
        },
        {"command": "ComputeOnDevice", "properties": {"job_bin_ptr": str(BASE), "name": "k"}},
    ],
}
REMOVED = object()


def changed(*changes: tuple[str, Any], document: Document = SYMBOLIC) -> Document:
    """A copy with values replaced: ("JobExecPlan.0.properties.size", "8"), or `REMOVED`."""
    result = copy.deepcopy(document)
    for path, value in changes:
        *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        place: Any = result
        for step in steps:
            place = place[step]
        if value is REMOVED:
            del place[last]
        elif isinstance(place, list) and last == len(place):
            place.append(value)
        else:
            place[last] = value
    return result


def properties(plan: str, command: int, key: str) -> str:
    """Path of a property, for `changed`."""
    return f"{'JobPreparationPlan' if plan == 'prep' else 'JobExecPlan'}.{command}.properties.{key}"


def format_init_text(data: bytes) -> bytes:
    """The init.txt of ``data``: a line per stick, zeros added up to a whole one."""
    sticks = (data[k : k + 128].ljust(128, b"\0") for k in range(0, len(data), 128))
    return "".join(f"{stick[::-1].hex()}\n" for stick in sticks).encode()
