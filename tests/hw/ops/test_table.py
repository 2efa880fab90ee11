"""`python -m tools.op_table`: every name of the specification, its status, and the count."""

from __future__ import annotations

from spyre.hw.ops import OPS, SPEC_NAMES, Category, Family, find_op
from tools.op_table import Status, count_line, coverage, format_table, main

BY_FORMAT = (Family.ELEMENTWISE, Family.REDUCTION, Family.CONVERT, Family.TOPK, Family.MATMUL)
"""Families whose rows list their formats; the others have separate rules."""


def test_prints_every_name_and_the_count(capsys):
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(SPEC_NAMES)
    assert lines[-1] == count_line(coverage())
    shown = {line.split()[0]: line for line in lines[:-1]}
    assert shown["fnms"].endswith("implemented  c - a·b (our reading)")
    assert "refused" in shown["keepbyindex"]
    assert "its mathematics is not public" in shown["keepbyindex"]


def test_counts():
    names = dict.fromkeys(("add", "riddle", "later"), Category.BINARY)
    lines = coverage(names, refused={"riddle": (Category.BINARY, "nobody knows")})
    expected = [Status.IMPLEMENTED, Status.REFUSED, Status.MISSING]
    assert [line.status for line in lines] == expected
    assert count_line(lines) == "2 of 3 covered: 1 implemented, 1 refused by name"
    assert format_table(lines).splitlines() == [
        "add     binary and ternary  implemented  a + b",
        "riddle  binary and ternary  refused      nobody knows",
        "later   binary and ternary  missing      not simulated yet",
        "2 of 3 covered: 1 implemented, 1 refused by name",
    ]


def test_a_row_comes_before_a_reason():
    """A refused name that gets a row is implemented."""
    (line,) = coverage({"add": Category.BINARY}, refused={"add": (Category.BINARY, "not known")})
    assert line.status is Status.IMPLEMENTED


def test_rows_are_names_of_the_specification():
    """Every row is, itself or with the suffix of its nonstick form, on the list."""
    for name, spec in OPS.items():
        assert name in SPEC_NAMES
        assert (f"{name}nonstick" in SPEC_NAMES) == spec.nonstick
        assert spec.formats or spec.family not in BY_FORMAT
    assert all(find_op(name) is not None for name in SPEC_NAMES if name.endswith("nonstick"))
