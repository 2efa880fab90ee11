"""Checks of KTIR texts: each finding at its line, none on right programs."""

from __future__ import annotations

import json

import pytest

from spyre.errors import BundleError, LaunchError, MlirSyntaxError, Severity
from spyre.mlir.tiles.program import load_ktir
from tests.corpus.tiles import CASES, FILE
from tests.mlir.tiles.corpus import COLLECTION, EXAMPLES, needs_collection, rows


def findings_of(text):
    try:
        return load_ktir(text).check()
    except MlirSyntaxError as error:
        return (error.finding,)


@needs_collection
def test_wrong_programs_of_the_collection():
    for row in rows("wrong.tsv"):
        if row["stage"] != "check":
            continue
        folder = COLLECTION / row["case"]
        doc = json.loads((folder / "case.json").read_text())
        first = findings_of((folder / "kernel.ktir").read_text())[0]
        assert first.severity is Severity.ERROR
        assert first.location.line in doc["lines"], first
        assert any(word.lower() in str(first).lower() for word in doc["mention_any"]), first


def test_no_finding_is_repeated_for_every_use():
    """A value that is not defined is one finding per use, and hides no other."""
    text = (EXAMPLES / "add.ktir").read_text().replace("%a = ktdp.load", "%q = ktdp.load")
    assert [finding.code for finding in findings_of(text)] == ["SPY130"]


def test_arguments():
    program = load_ktir(EXAMPLES / "product.ktir")
    a, b, c, k = program.arguments()
    assert (a.element, a.shape, a.is_read, a.is_stored) == ("f16", (64, 512), True, False)
    assert (b.is_pointer, k.is_pointer, k.element) == (True, False, "index")
    assert (c.shape, c.is_read, c.is_stored) == ((64, 256), False, True)
    assert program.grid() == (2, 4)


def test_the_function_is_chosen_by_name():
    text = (
        "func.func @a(%n: index) {\n  return\n}\nfunc.func @b(%t: tensor<4xf16>) {\n  return\n}\n"
    )
    program = load_ktir(text)
    with pytest.raises(LaunchError, match="SPY340"):
        program.function()
    with pytest.raises(LaunchError, match="SPY340"):
        program.function("c")
    assert [argument.name for argument in program.arguments("a")] == ["n"]
    with pytest.raises(BundleError, match="SPY193"):
        program.arguments("b")


def test_a_program_is_equal_to_its_text():
    program = load_ktir(EXAMPLES / "softmax.ktir")
    assert load_ktir(str(program)) == program
    assert str(load_ktir(str(program))) == str(program)


def test_cases_of_the_corpus_are_texts_of_the_examples():
    assert all(case.words[0] == FILE for case in CASES[:-1])
