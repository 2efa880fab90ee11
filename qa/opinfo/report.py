"""The tables at the end of a run, and its JSON file."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qa.opinfo import outcome as o
from qa.opinfo.known import known_failure, passes_after_all
from qa.opinfo.outcome import OpResult
from qa.opinfo.rules import EMPTY, RANDOM, RANDOM_WITH
from qa.opinfo.summary import delivered, shortcomings, summaries
from qa.opinfo.tolerances import DEFAULT_REASONS, DEFAULTS, GRADIENT, OVERRIDES, Override

COLUMNS = tuple(name for name in o.SEVERITY if name != o.UNREFERENCED)


def print_report(results: list[OpResult], console: Console) -> None:
    """Print failures, tolerances, operators on the cores, totals and shortcomings."""
    for table in (_failures(results), _unreferenced(results), _tolerances(), _delivered(results)):
        if table.row_count:
            console.print(table)
    console.print(f"only shape, strides and dtype compared: {', '.join(sorted(EMPTY))}")
    console.print(f"random, shape, dtype and range compared: {', '.join(sorted(RANDOM))}; samples")
    console.print(f"with dropout of {', '.join(sorted(RANDOM_WITH))}")
    console.print(_totals(results))
    for result in filter(passes_after_all, results):
        console.print(f"known to fail, but passes: {result.way} {result.dtype} {result.op}")
    for shortcoming in shortcomings(results):
        console.print(f"[red]not enough:[/red] {escape(shortcoming)}")


def as_json(results: list[OpResult], options: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return all results of a run as plain data."""
    return {
        "options": options,
        "torch": torch.__version__,
        "seconds": round(seconds, 1),
        "meets_the_bar": not shortcomings(results),
        "shortcomings": shortcomings(results),
        "totals": [
            {**asdict(one), "passed": one.passed, "share": one.share} for one in summaries(results)
        ],
        "delivered": [
            {
                "promise": one.promise,
                "op": one.result.op,
                "dtype": one.result.dtype,
                "ok": one.ok,
                "outcome": one.result.outcome,
                "fallbacks": one.result.fallbacks,
            }
            for one in delivered(results)
        ],
        "tolerances": {
            "defaults": {str(dtype): asdict(one) for dtype, one in DEFAULTS.items()},
            "overrides": {op: asdict(one) for op, one in OVERRIDES.items()},
        },
        "results": [result.as_json() for result in results],
    }


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write ``data`` to ``path`` completely or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.resolve().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _totals(results: list[OpResult]) -> Table:
    table = _table(
        "operators", "way", "dtype", "operators", "passing", *COLUMNS, "not counted", "samples"
    )
    for one in summaries(results):
        counts = [str(one.counts.get(name, 0)) for name in COLUMNS]
        share = f"{one.share:.1%}"
        rest = (str(one.unreferenced), str(one.samples))
        table.add_row(one.way, one.dtype, str(one.ops), share, *counts, *rest)
    return table


def _failures(results: list[OpResult]) -> Table:
    table = _table(
        "operators that do not pass", "operator", "way", "dtype", "outcome", "samples", "why"
    )
    for result in results:
        if result.counted and not result.passes:
            counts = ", ".join(f"{count} {name}" for name, count in result.counts.items())
            worst = result.failures[0]
            known = known_failure(result)
            told = f"\nknown: {known.why}" if known else ""
            why = escape(f"{worst.reason}\n[{worst.index}] {worst.sample}{told}")
            table.add_row(result.op, result.way, result.dtype, result.outcome, counts, why)
    return table


def _unreferenced(results: list[OpResult]) -> Table:
    table = _table("operators that do not count", "operator", "way", "dtype", "why")
    for result in results:
        if not result.counted:
            why = result.reason or "no sample inputs"
            table.add_row(result.op, result.way, result.dtype, escape(why))
    return table


def _tolerances() -> Table:
    table = _table("tolerances", "dtype or operators", "rtol", "atol", "native", "condition", "why")
    for dtype, one in DEFAULTS.items():
        figures = (f"{one.rtol:.3g}", f"{one.atol:.3g}", f"{one.native:g}", f"{one.condition:g}")
        table.add_row(str(dtype), *figures, DEFAULT_REASONS[dtype])
    for override, ops in {**_grouped(), GRADIENT: ["gradients, at least"]}.items():
        atol = "" if override.atol is None else f"{override.atol:.3g}"
        figures = (f"× {override.roundings:g}", atol, "", f"{override.condition:g}")
        table.add_row(", ".join(ops), *figures, override.why)
    return table


def _grouped() -> dict[Override, list[str]]:
    groups: dict[Override, list[str]] = {}
    for op, override in OVERRIDES.items():
        groups.setdefault(override, []).append(op)
    return groups


def _delivered(results: list[OpResult]) -> Table:
    table = _table("on the simulated cores", "promise", "operator", "dtype", "state", "fallbacks")
    for one in delivered(results):
        fallbacks = ", ".join(f"{name} {count}" for name, count in one.result.fallbacks.items())
        state = "ok" if one.ok else "falls back" if one.result.passes else one.result.outcome
        row = (one.promise, one.result.op, one.result.dtype, state, fallbacks or "0")
        table.add_row(*row, style=None if one.ok else "red")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", show_lines=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
