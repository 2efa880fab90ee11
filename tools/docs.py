"""Generates the tables of ``docs/`` from the code: `python -m tools.docs` rewrites them.

A page holds a block per table, between ``<!-- table: NAME -->`` and ``<!-- end -->``; text outside
the blocks is written by hand. ``docs/errors.md`` is generated from ``tools/errors.md`` and not kept
in the repository. ``tests/test_docs.py`` fails when a block is out of date.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from spyre.codes import diagnostic_codes
from spyre.config import VARIABLES
from spyre.dtypes import FORMATS, HOST_DTYPES
from spyre.hw import spec_choices
from spyre.hw.ops.elementwise import Family, OpDefinition
from spyre.hw.ops.table import OPS
from spyre.hw.reference.agreement import AGREEMENTS
from tools import cost_tables
from tools.conventions import CONVENTIONS
from tools.error_page import (
    FRAME,
    CodeKind,
    code_sections,
    error_classes,
    examples_toml,
    find_code_kinds,
)
from tools.op_table import Coverage, Status, count_line, coverage

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ERROR_PAGE = DOCS / "errors.md"
EXAMPLES = ROOT / "spyre" / "codes" / "examples.toml"
_BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

STICK_RULES = {
    Family.ELEMENTWISE: "same stick dim and lanes in all operands",
    Family.REDUCTION: "same stick dim and lanes; a reduced stick dim keeps one stick (scale -2)",
    Family.COPY: "same stick dim and lanes",
    Family.CONVERT: "same stick dim, 64 16-bit against 32 32-bit lanes, whole groups of 64",
    Family.RESTICKIFY: "two stick dims that both tensors hold, equal lanes, whole sticks",
    Family.MATMUL: "A along the reduction dim, B and C along the generated dim",
    Family.SHUFFLE: "same stick dim and lanes, both in LX; slices meet between sticks",
    Family.TOPK: "a common stick dim, neither the reduced one nor k",
    Family.PACKED_MATMUL: "DL16: A [k 64], B [n 64], C [n 64]; 8 bits: A [k 128], B [k 2, n 64]; "
    "4 bits: A [k 16, row 2, k 8], B [k 4, n 64]; C is DL16 in all of them",
    Family.REQUANTIZE: "a common stick dim a; packed outputs: ch [a 128], mb [a 8, o 2, a 8], "
    "wt [o 2, a 64], csqint4 [a 16, o 2, a 8], csqint4wt [o 4, a 64]",
    Family.WINDOWING: "a common stick dim that is neither windowed nor a window",
}

SHORT_FORMATS = {"SEN169_FP16": "DL16", "IEEE_FP32": "FP32"}
"""Abbreviations of formats in the operations table."""

CODE_GROUPS = "123456789"
SANITIZER_GROUP = "7"
"""First digit of the codes whose errors exit with 1."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def operations() -> str:
    """Return the table of the operations of :data:`spyre.hw.ops.table.OPS`."""
    head = (
        *("operation", "family", "unit", "inputs", "constants", "formats", "definition"),
        "readings",
    )
    return table(head, map(_operation_row, OPS.values()))


def _operation_row(op: OpDefinition) -> tuple[object, ...]:
    optional = [f"{_code(name)} (optional)" for name in op.optional_constants]
    constants = ", ".join([*map(_code, op.constants), *optional])
    formats = _short(op.formats)
    if op.result_formats:
        formats += f" → {_short(op.result_formats)}"
    names = ", ".join(readings_of(op.name))
    return (_code(op.name), op.family, op.unit, op.inputs, constants, formats, op.definition, names)


def _short(formats: Sequence[str]) -> str:
    return ", ".join(SHORT_FORMATS.get(name, name) for name in formats)


def coverage_table() -> str:
    """Return the table of the specification's names without an operation, and the counts."""
    lines = coverage()
    without = [line for line in lines if line.status is not Status.IMPLEMENTED]
    rows = ((_code(line.name), line.category, _status(line)) for line in without)
    return table(("name", "category", "status"), rows) + f"\n{count_line(lines)}.\n"


def _status(line: Coverage) -> str:
    return f"{line.status}: {line.detail}"


@dataclass(frozen=True, slots=True)
class ReadingRow:
    """A reading of the specification; ``value``: of its constant ("" for a convention)."""

    name: str
    value: str
    ops: tuple[str, ...]
    meaning: str


def reading_rows() -> Iterator[ReadingRow]:
    """Yield every documented constant of :mod:`spyre.hw.spec_choices`, then its conventions."""
    tree = ast.parse(Path(spec_choices.__file__).read_text(encoding="utf-8"))
    for statement, below in pairwise(tree.body):
        name = _assigned(statement)
        text = _text_of(below)
        if name and text:
            ops = tuple(re.findall(r"`(\w+)`", text))
            yield ReadingRow(name, _shown(getattr(spec_choices, name)), ops, _without_ops(text))
    for convention in CONVENTIONS:
        yield ReadingRow(convention.name, "", convention.ops, convention.meaning)


def _assigned(statement: ast.stmt) -> str:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _text_of(statement: ast.stmt) -> str:
    value = statement.value if isinstance(statement, ast.Expr) else None
    text = value.value if isinstance(value, ast.Constant) else ""
    return " ".join(text.split()) if isinstance(text, str) else ""


def _without_ops(text: str) -> str:
    """Return ``text`` without the operations before its first colon, which have a column."""
    head, colon, rest = text.partition(": ")
    return rest if colon and not re.sub(r"`\w+`|[ ,]", "", head) else text


def _shown(value: object) -> str:
    if not isinstance(value, frozenset):
        return str(value)
    rows = [" ".join(map(str, row)) if isinstance(row, tuple) else str(row) for row in value]
    return ", ".join(sorted(rows))


def readings_of(name: str) -> tuple[str, ...]:
    """Return the names of the readings that concern the operation ``name``."""
    return tuple(row.name for row in reading_rows() if name in row.ops)


def readings_table() -> str:
    """Return the table of the readings of :mod:`spyre.hw.spec_choices`."""
    rows = (
        (f"*{row.name}*", _code(row.value), ", ".join(map(_code, row.ops)), row.meaning)
        for row in reading_rows()
    )
    return table(("reading", "position", "operations", "meaning"), rows)


def stick_rules() -> str:
    """Return the table of each family's rule for the sticks of its operands."""
    return table(("family", "sticks"), ((family, rule) for family, rule in STICK_RULES.items()))


def codes_of(digit: str) -> Callable[[], str]:
    """Return a generator of the table of the codes that start with ``digit``."""

    def codes() -> str:
        kinds = find_code_kinds(ROOT / "spyre")
        chosen = (c for c in diagnostic_codes().values() if c.code[3] == digit)
        usual = CodeKind(False, 1 if digit == SANITIZER_GROUP else 2)
        rows = (
            (f"[{c.code}](#{c.code.lower()})", c.title, *_severity(kinds.get(c.code, usual)))
            for c in chosen
        )
        return table(("code", "title", "severity", "exit code"), rows)

    return codes


def _severity(kind: CodeKind) -> tuple[str, str]:
    return ("warning", "") if kind.is_warning else ("error", str(kind.exit_code))


def classes() -> str:
    """Return the table of error classes."""
    rows = (
        (
            _code(c.__name__),
            ", ".join(_code(b.__name__) for b in c.__bases__),
            c.exit_code,
            _summary(c),
        )
        for c in error_classes()
    )
    return table(("class", "bases", "exit code", "meaning"), rows)


def _summary(documented: type) -> str:
    return (documented.__doc__ or "").split("\n\n")[0].replace("\n", " ").strip()


def environment() -> str:
    """Return the table of environment variables of :data:`spyre.config.VARIABLES`."""
    rows = ((_code(v.name), _code(v.default), v.description) for v in VARIABLES)
    return table(("variable", "default", "meaning"), rows)


def formats() -> str:
    """Return the table of the device's number formats."""
    rows = (
        (_code(f.name), f.bits, f.kind, f.elements_per_stick or "storage not defined")
        for f in FORMATS.values()
    )
    return table(("format", "bits", "kind", "elements per stick"), rows)


def host_dtypes() -> str:
    """Return the table of the device format of each torch dtype."""
    rows = (
        (_code(d.name), d.item_bytes, _code(d.device_format), FORMATS[d.device_format].bits // 8)
        for d in HOST_DTYPES.values()
        if FORMATS[d.device_format].stored
    )
    return table(("torch dtype", "host bytes", "device format", "device bytes"), rows)


def agreement() -> str:
    """Return the table of the tolerances of ``--verify`` per family of operations."""
    rows = (
        (family, row.ulps, row.wide_ulps, "2⁻²⁴ · terms · largest term" if row.sums else "")
        for family, row in AGREEMENTS.items()
    )
    return table(
        ("family", "16-bit and smaller", "float32", "or, cancelling sums, absolutely"), rows
    )


def eager_kernels() -> str:
    """Return the table of PyTorch operations with a kernel on the cores, by module."""
    from spyre.torch_backend.eager.registry import MODULES

    rows = []
    for module in MODULES:
        what = (module.__doc__ or "").partition("\n")[0].rstrip(".")
        names = sorted({name.partition(".")[0] for name, *_ in module.KERNELS})
        rows.append((what, " ".join(map(_code, names))))
    return table(("what", "operations, all their overloads"), rows)


def torch_patches() -> str:
    """Return the table of changes of torch, by the name that disables each."""
    from spyre.torch_backend.registration import patches

    rows = (
        (_code(patch.name), patch.purpose, _replaced(tuple(patch.targets)))
        for patch in patches.PATCHES
    )
    return table(("name", "purpose", "replaces"), rows)


def _replaced(targets: Sequence[str], most: int = 4) -> str:
    shown = targets if len(targets) <= most else targets[:1]
    return ", ".join(map(_code, shown)) + (", …" if len(shown) < len(targets) else "")


TABLES: dict[str, Callable[[], str]] = {
    "cost-constants": lambda: table(cost_tables.CONSTANTS_HEAD, cost_tables.constants()),
    "cost-errors": lambda: table(cost_tables.ERRORS_HEAD, cost_tables.errors()),
    "cost-spreads": lambda: table(cost_tables.SPREADS_HEAD, cost_tables.spreads()),
    "cost-choices": lambda: table(cost_tables.CHOICES_HEAD, cost_tables.choices()),
    "cost-divisions": lambda: table(cost_tables.DIVISIONS_HEAD, cost_tables.divisions()),
    "eager-kernels": eager_kernels,
    "operations": operations,
    "coverage": coverage_table,
    "readings": readings_table,
    "stick-rules": stick_rules,
    "error-classes": classes,
    "environment": environment,
    "torch-patches": torch_patches,
    "formats": formats,
    "host-dtypes": host_dtypes,
    "agreement": agreement,
    **{f"codes-{digit}": codes_of(digit) for digit in CODE_GROUPS},
    **{f"sections-{digit}": partial(code_sections, digit) for digit in CODE_GROUPS},
}


def refresh(text: str) -> str:
    """Return a page's ``text`` with all blocks regenerated; KeyError for an unknown table."""
    return _BLOCK.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}{m[3]}", text)


def error_page() -> str:
    """The page of diagnostic codes; not kept in the repository, since it follows from the rest."""
    return refresh(FRAME.read_text(encoding="utf-8"))


def main() -> int:
    """Rewrite the pages that changed and name them."""
    made = {ERROR_PAGE: error_page, EXAMPLES: examples_toml}
    for page in sorted({*DOCS.rglob("*.md"), *made}):
        old = page.read_text(encoding="utf-8") if page.exists() else ""
        if (new := made[page]() if page in made else refresh(old)) != old:
            page.write_text(new, encoding="utf-8")
            print(page.relative_to(ROOT), file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
