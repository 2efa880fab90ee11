"""``--json``: the whole report of a run or a diagnosis as one object on stdout.

Keys are stable: docs/cli.md lists them. Numbers that are not finite become null.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.errors import Finding, LaunchError, SpyreError, ValidationError, printable
from spyre.files import read_regular

if TYPE_CHECKING:
    from spyre.cli.commands import ComparedRun
    from spyre.cli.diagnose import Diagnosis
    from spyre.hw.counters import Counters
    from spyre.runtime.arguments import HostTensor
    from spyre.runtime.compare import Comparison, OutputLocation
    from spyre.runtime.run import ExecuteReport, PlacedArgument

Object = dict[str, Any]


SCHEMA = 1
"""Version of the printed objects. It grows when a key changes, not when one is added."""


def print_object(content: Object) -> None:
    """Print a report, with the version of its keys first."""
    print_text_of({"schema": SCHEMA} | content)


def print_text_of(content: Object | list[Object]) -> None:
    text = msgspec.json.format(msgspec.json.encode(content), indent=1)
    sys.stdout.write(printable(text.decode(), is_json=True) + "\n")


def error_object(error: SpyreError) -> Object:
    """A run that ended in an error."""
    findings = error.findings if isinstance(error, ValidationError) else (error.finding,)
    return {
        "ok": False,
        "exit_code": error.exit_code,
        "error": finding_object(error.finding),
        "findings": [finding_object(f) for f in (*findings, *error.observed)],
    }


def diagnosis_object(diagnosis: Diagnosis) -> Object:
    """Findings of ``--check`` and ``--explain``."""
    return {
        "ok": diagnosis.exit_code == 0,
        "exit_code": diagnosis.exit_code,
        "bundle": diagnosis.path,
        "findings": [finding_object(f) for f in diagnosis.findings],
        "explanations": dict(diagnosis.explanations),
        "pictures": list(diagnosis.pictures),
    }


def run_object(compared: ComparedRun) -> Object:
    """A run with its comparisons."""
    result, first_wrong, tensors = compared.result, None, None
    if compared.breakpoint is not None:
        tensors = {
            name: tile and {"dims": tile.dims, "values": tile.values.tolist()}
            for name, tile in compared.breakpoint.tensors.items()
        }
    if compared.search is not None and compared.search.found is not None and compared.differs:
        from spyre.diagnose import deviation_object

        first_wrong = deviation_object(compared.search.found)
    checked = result.verification
    pairs = zip(result.output_tensors, result.outputs, strict=True)
    return {
        "ok": compared.exit_code == 0,
        "exit_code": compared.exit_code,
        "bundle": compared.options.path,
        "numerics": compared.numerics,
        "findings": [finding_object(f) for f in result.findings],
        "causes": [finding_object(f) for f in compared.causes],
        "first_wrong": first_wrong,
        "tensors": tensors,
        "arguments": [_argument_object(a) for a in result.arguments],
        "executes": [_execute_object(e) for e in result.executes],
        "totals": _counters_object(result.counters) | {"host_ns": result.host_ns},
        "interpreted": result.interpreted,
        "outputs": [_output_object(tensor, values) for tensor, values in pairs],
        "verification": None
        if checked is None
        else {"verified": checked.verified, "not_verified": checked.not_verified},
        "comparisons": [
            _comparison_object(result.output_tensors[k].name, c, result.places[k])
            for k, c in result.comparisons.items()
        ],
    }


def finding_object(finding: Finding) -> Object:
    """A finding; ``location`` is its text, or null."""
    names = ("code", "severity", "message", "location", "expected", "found", "hint")
    location = None if finding.location is None else str(finding.location)
    return {name: getattr(finding, name) for name in names} | {"location": location}


class _Findings(msgspec.Struct):
    findings: list[Object]


def read_findings(file: str) -> list[Object]:
    """Findings of a file with a `diagnosis_object`. LaunchError SPY383 if it cannot be read."""
    try:
        return msgspec.json.decode(read_regular(Path(file)), type=_Findings).findings
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LaunchError(
            "SPY383",
            f"cannot read the findings in {file}",
            expected="what spyre check PATH --json printed",
            found=getattr(error, "strerror", None) or str(error),
        ) from error


def _argument_object(placed: PlacedArgument) -> Object:
    spec = placed.spec
    names = ("arg_index", "name", "role", "shape", "strides")
    return {name: getattr(spec, name) for name in names} | {
        "dtype": spec.dtype_name,
        "device_size": spec.layout.device_size,
        "device_dtype": spec.layout.device_dtype,
        "address_bytes": placed.address_bytes,
    }


def _execute_object(report: ExecuteReport) -> Object:
    names = ("index", "sdsc", "op", "shape", "cores", "executions")
    shown = {name: getattr(report, name) for name in names}
    return shown | _counters_object(report.counters) | {"host_ns": report.host_ns}


def _counters_object(counters: Counters) -> Object:
    """All counts except executions, which the report has under another key."""
    return {name: count for name, count in counters.by_name.items() if name != "executions"}


def _output_object(tensor: HostTensor, values: npt.NDArray[Any]) -> Object:
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    known = bool(finite.size)
    return {
        "name": tensor.name,
        "shape": tensor.shape,
        "dtype": tensor.dtype_name,
        "min": float(finite.min()) if known else None,
        "max": float(finite.max()) if known else None,
        "mean": float(finite.mean()) if known else None,
        "not_finite": int(numbers.size - finite.size),
    }


def _comparison_object(name: str, comparison: Comparison, location: OutputLocation) -> Object:
    from spyre.runtime.compare import describe_location

    worst = comparison.worst_index
    names = ("ok", "total", "mismatched")
    return (
        {"name": name}
        | {each: getattr(comparison, each) for each in names}
        | {
            "rtol": comparison.tolerance.rtol,
            "atol": comparison.tolerance.atol,
            "max_abs": comparison.max_abs[0] if comparison.max_abs else None,
            "max_rel": comparison.max_rel[0] if comparison.max_rel else None,
            "worst_index": worst,
            "worst_expected": comparison.expected_worst,
            "worst_found": comparison.found_worst,
            "worst_place": None if worst is None else describe_location(location, worst),
        }
    )
