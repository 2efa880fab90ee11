"""The tables of ``docs/`` that are made from the code: `python -m tools.docs` rewrites them.

A page holds a block per table, between ``<!-- table: NAME -->`` and ``<!-- end -->``; what stands
around the blocks is written by hand. ``tests/test_docs.py`` fails when a block is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from spyre.codes import CODES
from spyre.config import VARIABLES
from spyre.dtypes import FORMATS, HOST_DTYPES
from spyre.hw.ops import OPS, Family, OpSpec
from tools.code_kinds import CodeKind, error_classes, find_code_kinds

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

STICK_RULES = {
    Family.ELEMENTWISE: "same stick dim and lanes in all operands",
    Family.REDUCTION: "same stick dim and lanes; a reduced stick dim keeps one stick (scale -2)",
    Family.COPY: "same stick dim and lanes",
    Family.CONVERT: "same stick dim, 64 16-bit against 32 32-bit lanes, whole groups of 64",
    Family.RESTICKIFY: "two stick dims that both tensors hold, equal lanes, whole sticks",
    Family.MATMUL: "A along the reduction dim, B and C along the generated dim",
    Family.TOPK: "a common stick dim, neither the reduced one nor k",
}

READINGS = {
    "layernormscale": "variance, replicate",
    "fastexp": "fast",
    "fastsigmoid": "fast",
    "gelufwd": "gelu",
    "exx2": "exx2",
    "dl16tofp32": "arrangement",
    "fp32todl16": "arrangement",
    **dict.fromkeys(("sum", "max", "min", "absmax", "mean", "prod"), "replicate"),
    **dict.fromkeys(
        ("equal", "notequal", "greaterequal", "lesserequal", "greaterthan", "lesserthan"), "nan"
    ),
    **dict.fromkeys(("realdiv", "reciprocal"), "zero"),
    **dict.fromkeys(("topkvalue", "topkindex"), "top-k"),
}
"""Names of the readings in docs/operations.md that concern an operation by itself."""

CODE_GROUPS = "1234567"
SANITIZER_GROUP = "7"
"""First digits of the codes: one table each."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def operations() -> str:
    """Every operation of :data:`spyre.hw.ops.OPS`."""
    head = ("operation", "family", "unit", "inputs", "constants", "definition", "readings")
    return table(head, map(_operation_row, OPS.values()))


def _operation_row(op: OpSpec) -> tuple[object, ...]:
    constants = ", ".join(map(_code, op.constants))
    reading = READINGS.get(op.name, "")
    return (_code(op.name), op.family, op.unit, op.inputs, constants, op.definition, reading)


def stick_rules() -> str:
    """What each family asks of its operands' sticks."""
    return table(("family", "sticks"), ((family, rule) for family, rule in STICK_RULES.items()))


def codes_of(digit: str) -> Callable[[], str]:
    """A generator of the table of the codes that start with ``digit``."""

    def codes() -> str:
        kinds = find_code_kinds(ROOT / "spyre")
        chosen = ((code, title) for code, title in CODES.items() if code[3] == digit)
        usual = CodeKind(False, 1 if digit == SANITIZER_GROUP else 2)
        rows = ((code, title, *_severity(kinds.get(code, usual))) for code, title in chosen)
        return table(("code", "title", "severity", "exit code"), rows)

    return codes


def _severity(kind: CodeKind) -> tuple[str, str]:
    return ("warning", "") if kind.is_warning else ("error", str(kind.exit_code))


def classes() -> str:
    """The error tree."""
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
    """Every environment variable of :data:`spyre.config.VARIABLES`."""
    rows = ((_code(v.name), _code(v.default), v.description) for v in VARIABLES)
    return table(("variable", "default", "meaning"), rows)


def formats() -> str:
    """The device's number formats."""
    rows = (
        (_code(f.name), f.bits, f.kind, f.elements_per_stick or "storage not defined")
        for f in FORMATS.values()
    )
    return table(("format", "bits", "kind", "elements per stick"), rows)


def host_dtypes() -> str:
    """What a torch dtype becomes on the device."""
    rows = (
        (_code(d.name), d.item_bytes, _code(d.device_format), FORMATS[d.device_format].bits // 8)
        for d in HOST_DTYPES.values()
        if FORMATS[d.device_format].stored
    )
    return table(("torch dtype", "host bytes", "device format", "device bytes"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "operations": operations,
    "stick-rules": stick_rules,
    "error-classes": classes,
    "environment": environment,
    "formats": formats,
    "host-dtypes": host_dtypes,
    **{f"codes-{digit}": codes_of(digit) for digit in CODE_GROUPS},
}


def refresh(text: str) -> str:
    """``text`` of a page with every block made anew; KeyError for a name that is no table."""
    return _BLOCK.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}{m[3]}", text)


def main() -> int:
    """Rewrite the pages that changed and name them."""
    for page in sorted(DOCS.rglob("*.md")):
        old = page.read_text(encoding="utf-8")
        if (new := refresh(old)) != old:
            page.write_text(new, encoding="utf-8")
            print(page.relative_to(ROOT), file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
