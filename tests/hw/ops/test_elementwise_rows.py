"""Rows of elementwise operations beside the kernel: a wrong or forgotten column is found."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import spyre
from spyre.hw.kernels import dl16_functions, dl16_vectors
from spyre.hw.ops import CARD_FORMS, CODE_FORMS, OPCODE, OPCODES, OPS, Family
from spyre.hw.ops.elementwise import ELEMENTWISE, _row
from spyre.hw.reference.definitions import POINTWISE

KERNELS = Path(spyre.__file__).parent / "hw/kernels"
FUNCTIONS = (row for row in CARD_FORMS.values() if row.family is Family.ELEMENTWISE)
ROWS = {row.kernel_op: row for row in (*ELEMENTWISE, *FUNCTIONS)}
COSTLY = {"exponential", "half_exponential", "logarithm", "square_root", "inverse_root"}
COSTLY |= {"gelu", "gelu_erf", "gelu_tanh"}
"""Formulas of several cycles per element on the card, and all that are made of them."""


def called(node: ast.AST) -> set[str]:
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return {f.id for f in calls if isinstance(f, ast.Name)}


@cache
def formulas() -> dict[str, set[str]]:
    """Functions that each formula calls."""
    body = ast.parse((KERNELS / "vector_math.py").read_text()).body
    return {f.name: called(f) for f in body if isinstance(f, ast.FunctionDef)}


def parts(names: set[str]) -> set[str]:
    """Formulas and all that they are made of."""
    found, rest = set(names), list(names)
    while rest:
        new = formulas().get(rest.pop(), set()) - found
        found |= new
        rest += new
    return found


@cache
def branches(function: str) -> dict[str, set[str]]:
    """Functions called in each branch of the kernel, by the name of its opcode."""
    body = ast.parse((KERNELS / "families/elementwise.py").read_text()).body
    (kernel,) = (f for f in body if isinstance(f, ast.FunctionDef) and f.name == function)
    found: dict[str, set[str]] = {}
    for branch in ast.walk(kernel):
        if isinstance(branch, ast.If):
            names = {n.attr for n in ast.walk(branch.test) if isinstance(n, ast.Attribute)}
            for name in names:
                calls = set().union(*map(called, branch.body))
                found.setdefault(name.lower(), set()).update(calls)
    return found


def test_every_operation_has_a_branch_of_its_arity():
    unary, binary, many = (branches(f"apply_{kind}") for kind in ("unary", "binary", "many"))
    # layernormscale reads two lanes of its one input
    arity = {**{name: row.inputs for name, row in ROWS.items()}, "layernormscale": 2}
    assert set(unary) == {name for name, inputs in arity.items() if inputs == 1}
    assert set(binary) == {name for name, inputs in arity.items() if inputs == 2}
    assert set(many) == {name for name, inputs in arity.items() if inputs > 2}


def test_opcodes_are_the_order_of_rows():
    assert list(OPCODES) == list(ROWS)
    assert OPCODE._asdict() == {name.upper(): opcode for name, opcode in OPCODES.items()}
    assert {row.name for row in OPS.values() if row.family is Family.ELEMENTWISE} == {
        row.name for row in ELEMENTWISE
    }


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.inputs == 1])
def test_the_cost_class_is_that_of_the_formula(name: str):
    """layernormscale counts as arithmetic: its root is one of a row."""
    used = parts(branches("apply_unary").get(name, set()))
    assert ROWS[name].transcendental == bool(used & COSTLY)


def test_rows_of_one_kernel_operation_agree():
    for row in ELEMENTWISE:
        first = ROWS[row.kernel_op]
        assert (row.inputs, row.code_form, row.transcendental, row.constants) == (
            *(first.inputs, first.code_form, first.transcendental, first.constants),
        )


def test_forms_on_codes_are_those_of_the_rows():
    """Every row names its form; every form on codes is named by a row."""
    with pytest.raises(TypeError, match="code_form"):
        _row("cube", 1, "x³")
    assert set(dl16_functions.CODE_OPERATIONS) == set(CODE_FORMS)
    named = {row.code_form for row in CODE_FORMS.values()}
    assert set(dl16_vectors.OPERATIONS) <= named
    assert named <= {*dl16_vectors.OPERATIONS, *formulas(), "gelu", "inverse_root_of_codes"}


def test_every_operation_has_a_definition():
    assert set(POINTWISE) == set(ROWS)
