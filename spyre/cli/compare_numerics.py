"""``--against``: one program in two number modes, compared and reported as text or JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from math import isfinite
from typing import Any

from spyre import config
from spyre.cli.commands import (
    is_bundle_run,
    make_device,
    override_tolerance,
    run_options,
    with_tensors,
)
from spyre.cli.entry import print_coloured
from spyre.cli.json_report import finding_object, print_object
from spyre.cli.options import NumericsOptions
from spyre.cli.text_report import MAX_WARNINGS, print_table
from spyre.diagnose import (
    ExecuteDifference,
    NumericsReport,
    OutputDifference,
    Verdict,
    WorstElement,
    compare_numerics,
)
from spyre.errors import Finding
from spyre.hw.device import Device
from spyre.hw.numerics import ERRATA, parse_numerics
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.runtime.cases import case_directory, read_case, with_tolerances
from spyre.runtime.drawing import Column, text_table
from spyre.runtime.run import Run, session_of


def run_compare_numerics(options: NumericsOptions) -> int:
    """Compare ``--numerics`` with ``--against``, print the report, return the exit code."""
    modes = options.numerics or config.NUMERICS.read(), options.against
    devices = [make_device(options, numerics=parse_numerics(mode)) for mode in modes]
    run = _describe(options, devices[0])
    placements = [session_of(device).placed(run) for device in devices]
    with placements[0] as first, placements[1] as second:
        first.fill()
        second.fill()
        report = compare_numerics(first, second)
    if options.json:
        print_object(report_object(options.path, report, run.findings))
    else:
        print_report(report, run.findings, options)
    return report.exit_code


def _describe(options: NumericsOptions, device: Device) -> Run:
    """The run of the case or bundle, with inputs and expected outputs."""
    session = session_of(device)
    directory = case_directory(options.path)
    if directory is not None and not is_bundle_run(options):
        case = with_tolerances(read_case(directory), partial(override_tolerance, options))
        return session.describe(case)
    run = session.describe(options.path, run_options(options))
    return with_tensors(options, run, "dl16")  # whose tolerances are the wider ones


MAX_ROWS = 24
"""Rows of the table; of more execute statements, those that differ most, unless ``-v`` is given."""


def print_report(
    report: NumericsReport, findings: Sequence[Finding], options: NumericsOptions
) -> None:
    """Table of executes, lines of outputs, the verdict; with ``-q`` only the verdict."""
    if not options.quiet:
        for finding in findings if options.verbose else findings[:MAX_WARNINGS]:
            print_coloured(finding, sys.stderr)
        print(f"{report.first} against {report.second}: every execute from equal operands")
        shown = _shown(report.executes, options.verbose)
        print_table(text_table(_COLUMNS, shown, {"shape", "where"}))
        for output in report.outputs:
            print(_output_line(output, report))
    print(verdict_line(report))


def _shown(executes: Sequence[ExecuteDifference], every: bool) -> list[ExecuteDifference]:
    if every or len(executes) <= MAX_ROWS:
        return list(executes)
    ranked = sorted(
        executes,
        key=lambda e: (not e.is_explained, e.worst.units if e.worst else 0.0),
        reverse=True,
    )
    return sorted(ranked[:MAX_ROWS], key=lambda e: e.index)


def _explained(execute: ExecuteDifference) -> str:
    if execute.worst is None:
        return "-"
    if execute.unexplained and execute.erratum:
        return execute.erratum
    if execute.unexplained:
        return f"NO (to {_ulps(execute.worst.explained_units)})"
    return "range" if execute.beyond else "yes"


_COLUMNS: tuple[Column[ExecuteDifference], ...] = (
    Column("#", lambda e: str(e.index), lambda e: e.index),
    Column("operation", lambda e: e.op),
    Column("shape", lambda e: e.shape),
    Column("runs", lambda e: str(e.runs), lambda e: e.runs),
    Column("differ", lambda e: _share(e.differing, e.compared), lambda e: e.differing),
    Column("max ULP", lambda e: _ulps(e.worst.units if e.worst else 0.0), lambda e: e.units_sum),
    Column("mean ULP", lambda e: _ulps(e.mean_units), lambda e: e.mean_units),
    Column("explained", _explained, lambda e: e.unexplained),
    Column("where", lambda e: "" if e.worst is None else describe_spot(e.worst)),
)


def describe_spot(worst: WorstElement) -> str:
    """The element that differs most: values, coordinates, core, loop indices, address."""
    return f"{worst.first:.6g} / {worst.second:.6g} at {_location_text(worst)}"


def _location_text(spot: WorstElement) -> str:
    coordinates = ", ".join(f"{dim} {c}" for dim, c in spot.coordinates.items())
    parts = [coordinates, f"core {spot.core}"]
    if spot.loop_indices:
        parts.append(f"tile {spot.loop_indices}")
    if spot.address_bytes >= LX_BASE:
        parts.append(f"LX {(spot.address_bytes - LX_BASE) % LX_BYTES:#x}")
    else:
        parts.append(f"address {spot.address_bytes:#x}")
    return ", ".join(part for part in parts if part)


def _output_line(output: OutputDifference, report: NumericsReport) -> str:
    text = f"{output.name}: "
    if not output.differing:
        text += f"all {output.compared} elements equal"
    else:
        text += (
            f"{_share(output.differing, output.compared)} of {output.compared} elements differ, "
            f"max {_ulps(output.worst_units)} ULP, mean {_ulps(output.mean_units)} ULP of "
            f"{output.data_format}; worst {output.first:.6g} / {output.second:.6g} at index "
            f"{output.worst_index}, {output.place}"
        )
    if output.agrees is not None:
        sides = zip((report.first, report.second), output.agrees, strict=True)
        text += "; expected values: " + ", ".join(
            f"{mode} {'agrees' if ok else 'DIFFERS'}" for mode, ok in sides
        )
    return text


def verdict_line(report: NumericsReport) -> str:
    """The verdict and its reason."""
    reasons = {
        Verdict.EQUAL: "every execute and every output is the same in both modes",
        Verdict.QUANTISATION: "no execute differs by more than its rounding explains",
        Verdict.RANGE: "no execute differs by more than its rounding explains, but for results "
        f"too large for binary16, in {_indices(report)}",
        Verdict.NOT_QUANTISATION: _blame(report),
    }
    return f"verdict: {report.verdict.value}: {reasons[report.verdict]}"


def _indices(report: NumericsReport) -> str:
    indices = [str(e.index) for e in report.executes if e.beyond]
    shown = ", ".join(indices[:8]) + (", …" if len(indices) > 8 else "")
    return f"execute{'s' if len(indices) > 1 else ''} {shown}"


def _blame(report: NumericsReport) -> str:
    guilty = [e for e in report.executes if not e.is_explained]
    if not guilty:
        return "both modes miss the expected values, although rounding explains every execute"
    first = guilty[0]
    worst = first.worst
    assert worst is not None
    cause = ""
    if first.erratum:
        source = ERRATA[first.erratum].source
        cause = f" (the card's {first.erratum}, torch-spyre issues {source})"
    return (
        f"execute {first.index} ({first.op}) is the first of {len(guilty)} that differ by more "
        f"than their rounding explains{cause}: {first.unexplained} elements, worst "
        f"{_ulps(worst.units)} ULP where {_ulps(worst.explained_units)} are explained, "
        f"{describe_spot(worst)}"
    )


def _share(count: int, total: int) -> str:
    if not count or not total:
        return "-"
    percent = 100 * count / total
    return f"{percent:.1f} %" if percent >= 0.05 else "<0.05 %"


def _ulps(units: float) -> str:
    if units == 0:
        return "-"
    return f"{units:.3g}" if isfinite(units) else "∞"


# --- JSON -------------------------------------------------------------------------------------


def report_object(path: str, report: NumericsReport, findings: Sequence[Finding]) -> dict[str, Any]:
    """The report as one object; docs/cli.md lists the keys."""
    return {
        "ok": report.exit_code == 0,
        "exit_code": report.exit_code,
        "bundle": path,
        "numerics": str(report.first),
        "against": str(report.second),
        "verdict": report.verdict.value,
        "reason": verdict_line(report).split(": ", 2)[2],
        "findings": [finding_object(f) for f in findings],
        "executes": [_execute_object(e) for e in report.executes],
        "outputs": [_output_object(o) for o in report.outputs],
    }


def _execute_object(e: ExecuteDifference) -> dict[str, Any]:
    worst, names = e.worst, ("core", "loop_indices", "coordinates", "address_bytes")
    location = None if worst is None else {name: getattr(worst, name) for name in names}
    return {name: getattr(e, name) for name in ("index", "sdsc", "op", "shape")} | {
        "format": e.data_format,
        "executions": e.runs,
        "compared": e.compared,
        "differing": e.differing,
        "max_ulp": _number(worst.units if worst else 0.0),
        "mean_ulp": e.mean_units,
        "explained": e.is_explained,
        "unexplained": e.unexplained,
        "beyond_binary16": e.beyond,
        "adjusted_operands": e.adjusted_operands,
        "erratum": e.erratum or None,
        "worst_explained_ulp": _number(worst.explained_units) if worst else None,
        "worst_values": [_number(worst.first), _number(worst.second)] if worst else None,
        "worst_place": location,
    }


def _output_object(o: OutputDifference) -> dict[str, Any]:
    return {
        "name": o.name,
        "format": o.data_format,
        "compared": o.compared,
        "differing": o.differing,
        "max_ulp": _number(o.worst_units),
        "mean_ulp": o.mean_units,
        "worst_index": o.worst_index,
        "worst_values": [_number(o.first), _number(o.second)],
        "worst_place": o.place or None,
        "agrees_with_expected": o.agrees,
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
