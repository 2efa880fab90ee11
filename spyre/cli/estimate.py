"""``spyre estimate``: modelled times of the kernels of a CSV file, or the machine fitted to it; and
of whole models.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from spyre.cli.entry import print_coloured
from spyre.cli.json_report import finding_object, print_object
from spyre.cli.options import EstimateOptions
from spyre.errors import EstimateError, Finding
from spyre.files import atomic_write
from spyre.hw.cost import (
    Estimate,
    Estimates,
    MachineSpec,
    ModelEstimate,
    default_machine,
    estimate_file,
    estimate_model,
    fit,
    load_machine,
    machine_text,
    machine_with,
    make_machine,
    read_rows,
)

ADDED = ("modelled_us", "error", "spread", "class", "bound_by", "chosen_split")


def estimate_and_report(options: EstimateOptions) -> int:
    """Carry out the command; 1 if rows have no time, SpyreErrors for files that cannot be used."""
    machine = default_machine() if options.machine is None else load_machine(options.machine)
    findings: list[Finding] = []
    if options.fit is not None:
        rows = read_rows(options.fit)
        findings += [row.finding for row in rows if row.finding is not None]
        constants = fit(machine, rows)
        text = machine_text(f"fitted to {Path(options.fit).name}", constants)
        if options.output is not None:
            _write(options.output, text)
        elif not options.path:
            sys.stdout.write(text)
        machine = make_machine(machine.name, {**machine.constants, **constants})
    if options.model is not None:
        _report_model(options.model, options, machine)
    if options.path:
        estimates = estimate_file(options.path, machine)
        wrong = (each.row.finding for each in estimates.rows)
        findings += [finding for finding in wrong if finding is not None]
        if options.json:
            print_object(estimates_object(estimates))
            return int(bool(findings))
        (_print_csv if options.csv else _print_tables)(estimates, options.quiet)
    for finding in findings:
        print_coloured(finding, sys.stderr)
    return int(bool(findings))


def _write(path: str, text: str) -> None:
    try:
        with atomic_write(Path(path)) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EstimateError("SPY767", f"cannot write {path}", found=str(error.strerror)) from error


def estimates_object(estimates: Estimates) -> dict[str, Any]:
    """The object of ``--json``: rows in the order of the file, errors by class, and choices."""
    return {
        "rows": [row_object(each) for each in estimates.rows],
        "errors": [asdict(each) for each in estimates.errors],
        "choices": [asdict(each) for each in estimates.choices],
    }


def row_object(each: Estimate) -> dict[str, Any]:
    """The cells of a row, its modelled time and its parts; null and a reason without one."""
    return {
        **each.row.cells,
        "modelled_us": each.us,
        "measured_us": each.row.us,
        "error": each.error,
        "spread": each.spread,
        "class": each.kind or None,
        "bound_by": None if each.time is None else str(each.time.bound),
        "parts_us": {} if each.time is None else each.time.terms.by_name_us,
        "chosen_split": each.split or None,
        "reason": each.row.finding and finding_object(each.row.finding),
    }


# --- whole models -------------------------------------------------------------------------------

SOURCES = """\
Measured on cards: kernels of these classes, with the error of their class (±). Extrapolated: their
sum, shapes far from the measured ones, launches (5 us each) and everything between cards."""


def _report_model(model: str, options: EstimateOptions, machine: MachineSpec) -> None:
    """The model as asked for, with other linears, and with other LX fractions."""
    names = ("cards", "batch", "prompt", "dtype")
    given = {name: v for name in names if (v := getattr(options, name)) is not None}
    machine = machine_with(machine, options.lx_fraction)
    asked = estimate_model(model, machine=machine, **given)
    others = [
        estimate_model(model, **{**given, "dtype": dtype}, machine=machine_with(machine, part))
        for dtype, part in product(("fp16", "fp8"), (0.2, 0.8))
        if (dtype, part) != (asked.dtype, asked.lx_fraction)
    ]
    if options.json:
        variants = [model_object(each) for each in others]
        print_object({**model_object(asked), "others": variants, "sources": SOURCES})
        return
    _print_table(
        ",prefill ms,±,ms per token,±,tokens/s", (_pass_cells(e) for e in (asked, *others))
    )
    _print_table("part,prefill ms,share,ms per token,share", _part_cells(asked))
    if not options.quiet:
        print(SOURCES)


def model_object(found: ModelEstimate) -> dict[str, Any]:
    """The object of ``--json`` for a model."""
    passes = (("prefill", found.prefill), ("token", found.token))
    names = ("model", "cards", "batch", "prompt", "dtype", "lx_fraction", "tokens_per_second")
    return {
        **{name: getattr(found, name) for name in names},
        **{f"{name}_ms": each.us / 1e3 for name, each in passes},
        **{f"{name}_spread": each.spread for name, each in passes},
        **{f"{name}_parts_ms": {k: us / 1e3 for k, us in e.parts_us.items()} for name, e in passes},
    }


def _pass_cells(found: ModelEstimate) -> Sequence[str]:
    one, other = found.prefill, found.token
    cards = "1 card" if found.cards == 1 else f"{found.cards} cards"
    return (
        f"{found.model} {found.dtype} LX fraction {found.lx_fraction:g}, {cards}, "
        f"batch {found.batch}, prompt {found.prompt}",
        *(f"{one.us / 1e3:,.1f}", f"{one.spread:.0%}"),
        *(f"{other.us / 1e3:,.1f}", f"{other.spread:.0%}", f"{found.tokens_per_second:,.1f}"),
    )


def _part_cells(found: ModelEstimate) -> Iterator[Sequence[str]]:
    for name in found.prefill.parts_us:
        parts = ((each.parts_us[name], each.us) for each in (found.prefill, found.token))
        pairs = ((f"{us / 1e3:,.2f}", f"{us / all_us:.0%}") for us, all_us in parts)
        yield (name, *(cell for pair in pairs for cell in pair))


# --- rows ---------------------------------------------------------------------------------------


def _print_csv(estimates: Estimates, _: bool) -> None:
    """The file with columns more; a row without time has its code in ``reason``."""
    names = (*dict.fromkeys(name for each in estimates.rows for name in each.row.cells), *ADDED)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow((*names, "reason"))
    for row in map(row_object, estimates.rows):
        cells = (row.get(name) for name in names)
        texts = [f"{cell:.6g}" if isinstance(cell, float) else cell for cell in cells]
        writer.writerow((*texts, row["reason"] and row["reason"]["code"]))


def _print_tables(estimates: Estimates, quiet: bool) -> None:
    """Rows; with measured times the errors by class and the choices."""
    if not quiet:
        heads = "row,kernel,modelled us,±,measured us,error,bound by,parts in us"
        _print_table(heads, (_row_cells(*each) for each in enumerate(estimates.rows, 1)))
    errors = (
        (e.name, str(e.rows), f"{e.median:.1%}", f"{e.tenth:.1%}", f"{e.bias:+.1%}")
        for e in estimates.errors
    )
    _print_table("class,rows,median error,nine of ten below,bias", errors)
    choices = (
        (c.title, str(c.rows), c.chosen, c.best, f"{c.cost:.1%}", f"{c.ordered} of {c.pairs}",
         "too close to call" if c.is_close else "")
        for c in estimates.choices
    )  # fmt: skip
    _print_table("problem,divisions,chosen,fastest,cost,ordered pairs,", choices)


def _row_cells(number: int, each: Estimate) -> Sequence[str]:
    row = row_object(each)
    if (reason := row["reason"]) is not None:
        text = f"{reason['code']}: {reason['message']}"
        return str(number), each.row.kernel, "-", *[""] * 4, text
    return (
        str(number),
        each.row.title + (f" (fastest: {each.split})" if each.split else ""),
        f"{each.us:.4g}",
        f"{each.spread:.0%}",
        "" if each.row.us is None else f"{each.row.us:.4g}",
        "" if each.error is None else f"{each.error:+.1%}",
        row["bound_by"] or "",
        ", ".join(f"{name} {us:.3g}" for name, us in row["parts_us"].items()),
    )


def _print_table(heads: str, lines: Iterable[Sequence[str]]) -> None:
    """Lines in columns, nothing for none; `rich` takes seconds for thousands of rows."""
    table = [heads.split(","), *lines]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table if len(table) > 1 else ():
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())
