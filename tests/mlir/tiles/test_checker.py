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


SUM = "%sum = arith.addf %a, %b : tensor<512xf16>"
GENERIC = """%e = tensor.empty() : tensor<512xf16>
    %w = linalg.generic {{indexing_maps = [affine_map<(i) -> ({map})>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]}} ins(%a : tensor<512xf16>) outs(%e : tensor<512xf16>) {{
      ^bb0(%p: f16, %q: f16):
        {body}
        linalg.yield %p : f16
    }} -> tensor<512xf16>"""


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("SPY182", "%w = arith.truncf %a : tensor<512xf16> to tensor<512xf32>"),
        ("SPY182", "%w = arith.extf %a : tensor<512xf16> to tensor<512xf16>"),
        ("SPY184", "%w = arith.constant dense<[1.0, 2.0]> : tensor<3xf16>"),
        ("SPY184", "%w = tensor.extract_slice %a[0] [4] [0] : tensor<512xf16> to tensor<4xf16>"),
        ("SPY187", "%w = linalg.index 0 : index"),
        ("SPY187", GENERIC.format(map="i", body="%n = linalg.index 3 : index")),
        ("SPY184", GENERIC.format(map="i + 1", body="")),
        ("SPY182", """%e = tensor.empty() : tensor<f16>
    %w = linalg.reduce { arith.addi } ins(%a : tensor<512xf16>) outs(%e : tensor<f16>)
      dimensions = [0]"""),
        ("SPY182", """%e = tensor.empty() : tensor<1x1xi32>
    %k = arith.constant dense<1> : tensor<1x1xi32>
    %w = linalg.matmul ins(%k, %k : tensor<1x1xi32>, tensor<1x1xi32>)
      outs(%e : tensor<1x1xi32>)"""),
        ("SPY181", "%w = ktdp.load %x_tile : !ktdp.access_tile<512xindex> -> tensor<512xf32>"),
        ("SPY184", "%w = tensor.expand_shape %a [[0], [1]] output_shape [8, 64] : tensor<512xf16> "
                   "into tensor<8x64xf16>"),
        ("SPY184", "%w = tensor.expand_shape %a [[0, 1]] output_shape [4, 128] : tensor<512xf16> "
                   "into tensor<8x64xf16>"),
        ("SPY181", "%w = tensor.from_elements %first : tensor<1xf16>"),
        ("SPY181", """%e = tensor.empty() : tensor<512xf16>
    %w = linalg.add ins(%a, %b : tensor<512xf16>, tensor<512xf16>)
      outs(%e : tensor<512xf16>) -> tensor<64xf16>"""),
        ("SPY182", """%e = tensor.empty() : tensor<512xf16>
    %w = linalg.map { arith.addi } ins(%a, %b : tensor<512xf16>, tensor<512xf16>)
      outs(%e : tensor<512xf16>)"""),
        ("SPY115", "%w = arith.constant 300 : i8"),
        ("SPY182", "%w = arith.constant dense<1.5> : tensor<4xi32>"),
        ("SPY182", "%w = arith.constant 1 : f16"),
        ("SPY183", "scf.yield %a : tensor<512xf16>"),
        ("SPY187", """%w = arith.constant 1.0 : f16
    %s = spyreop.softplus %w beta 0.0 threshold 20.0 : f16"""),
        ("SPY187", """%w = arith.constant 1.0 : f16
    %s = spyreop.compare <below> %w, %w : f16"""),
        ("SPY182", """%e = tensor.empty() : tensor<f32>
    %w = linalg.reduce { arith.addf } ins(%a : tensor<512xf16>) outs(%e : tensor<f32>)
      dimensions = [0]"""),
        ("SPY181", """%w = arith.extf %a : tensor<512xf16> to tensor<512xf32>
    ktdp.store %w, %z_tile : tensor<512xf32>, !ktdp.access_tile<512xindex>"""),
    ],
)  # fmt: skip
def test_further_findings(code, line):
    text = (EXAMPLES / "add.ktir").read_text().replace(SUM, f"{SUM}\n    {line}")
    found, *_ = findings_of(text)
    assert found.code == code
    assert found.location.line > text[: text.index(SUM)].count("\n") + 1


def test_forms_of_the_intrinsics():
    """Integers have no types in a text, layernormscale is written in two ways."""
    body = """%n = arith.constant 1 : i32
        %m = spyreop.addi32toi32 %n, %n
        %o = spyreop.layernormscale %p squares %p : f16
        %r = spyreop.layernormscale %p : f16"""
    line = GENERIC.format(map="i", body=body)
    text = (EXAMPLES / "add.ktir").read_text().replace(SUM, f"{SUM}\n    {line}")
    assert findings_of(text) == ()
    assert str(load_ktir(str(load_ktir(text)))) == str(load_ktir(text))


DELIVERED = """func.func @f() attributes {grid = [2]} {
  %k = arith.constant dense<0.0> : tensor<4xf16>
  %f = ktdp.inter_tile_produce producer_tiles_per_group = affine_set<(i)[g] : (i - g == 0)>
    -> !ktdp.tile_future<(tensor<4xf16>), groups = affine_set<(g) : (g >= 0, -g + 1 >= 0)>> {
    ^bb0(%g: index):
      ktdp.yield_partial %k : tensor<4xf16>
  }
  %r = ktdp.inter_tile_reduce(%f) consumer_tiles_per_group = affine_set<(i)[g] : (i - g == 0)>,
    identity(%k : tensor<4xf16>) : !ktdp.tile_future<(tensor<4xf16>),
    groups = affine_set<(g) : (g >= 0, -g + 1 >= 0)>> -> tensor<4xf16> {
    ^bb0(%p: tensor<4xf16>, %q: tensor<4xf16>):
      ktdp.yield_reduced %p : tensor<4xf16>
  }
  return
}
"""


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        ("SPY183", ",\n    identity(%k : tensor<4xf16>)", ""),
        ("SPY181", "-> tensor<4xf16> {\n    ^bb0(%p", "-> tensor<2xf16> {\n    ^bb0(%p"),
        ("SPY134", "groups = affine_set<(g) : (g >= 0, -g + 1 >= 0)>> ->", "groups = #none> ->"),
    ],
)
def test_deliveries(code, old, new):
    assert findings_of(DELIVERED) == ()
    assert old in DELIVERED
    assert code in [found.code for found in findings_of(DELIVERED.replace(old, new))]


def test_a_function_is_defined_once():
    function = "func.func @a() {\n  return\n}\n"
    assert [found.code for found in findings_of(function * 2)] == ["SPY133"]


def test_a_declaration_is_no_function_to_run():
    program = load_ktir("func.func private @g(index, tensor<4xf16>) -> tensor<4xf16>\n"
                        "func.func @a(%n: index {a.b = 1 : i64}) {\n  return\n}\n")  # fmt: skip
    assert program.check() == ()
    assert [*program.functions] == ["a"]
    assert load_ktir(str(program)) == program
    assert "{a.b = 1 : i64}" in str(program)


def test_a_name_of_two_regions_is_two_values():
    """A load has the elements of the view in its own region, whatever the name is elsewhere."""
    lines = ["%c = arith.constant 0 : index"]
    for element in ("f16", "f32"):
        view = f"memref<64x{element}>"
        lines += [
            "scf.for %i = %c to %c step %c {",
            "%v = ktdp.construct_memory_view %x, sizes: [64], strides: [1] {"
            f"memory_space = #ktdp.memory_space<global>}} : {view}",
            "%t = ktdp.construct_access_tile %v[%c] {access_tile_set = "
            "affine_set<(a) : (a >= 0, -a + 63 >= 0)>} : " + view + " -> "
            "!ktdp.access_tile<64xindex>",
            f"%a = ktdp.load %t : !ktdp.access_tile<64xindex> -> tensor<64x{element}>",
            "}",
        ]
    text = "\n".join(["func.func @f(%x: index) {", *lines, "return", "}"])
    assert findings_of(text) == ()
