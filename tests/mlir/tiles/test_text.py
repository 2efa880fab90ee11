"""Texts of KTIR: read, printed, equal; what cannot be read is refused at its place."""

from __future__ import annotations

import random
import re

import pytest

import spyre
from spyre.errors import MlirSyntaxError, SpyreError
from spyre.mlir.program import AffineSet
from spyre.mlir.tiles.checker import check_tiles
from spyre.mlir.tiles.forms import elements_of, print_tiles
from spyre.mlir.tiles.parser import parse_tiles
from spyre.mlir.tiles.program import load_ktir
from spyre.mlir.tiles.reading import affine
from spyre.mlir.tiles.syntax import memory_space, read_type
from spyre.mlir.tiles.table import operation_rows
from tests.mlir.tiles.corpus import COLLECTION, collected, examples, needs_collection, rows

CUT = ("kc-triton-ktir-paged_attention.mlir", "kc-triton-ktir-sdpa_2d.mlir")
"""Texts of the collection that end in the middle of a function."""
TEXTS = [COLLECTION / "texts" / row["file"] for row in rows("texts/index.tsv")]
REFUSED = {row["file"] for row in rows("texts/index.tsv") if not row["expected"].startswith("read")}
FUNCTION = "func.func @f({}) attributes {{grid = [2]}} {{\n{}\n  return\n}}\n"


def check_round_trip(text: str) -> None:
    module = parse_tiles(text)
    printed = print_tiles(module)
    assert parse_tiles(printed) == module
    assert print_tiles(parse_tiles(printed)) == printed


@pytest.mark.parametrize("path", examples(), ids=lambda path: path.stem)
def test_examples_are_read_and_printed(path):
    check_round_trip(path.read_text())
    assert spyre.load_ktir(path).check() == ()


@needs_collection
def test_programs_of_the_collection_are_read_and_printed():
    for path in (*collected("right"), *collected("speed")):
        check_round_trip(path.read_text())
        assert check_tiles(parse_tiles(path.read_text())) == (), path


@needs_collection
def test_texts_of_the_collection_are_read_and_printed():
    for path in TEXTS:
        if path.name not in (*CUT, *REFUSED):
            check_round_trip(path.read_text())


@needs_collection
def test_texts_that_the_verifier_refuses_are_refused():
    for path in TEXTS:
        if path.name in REFUSED:
            try:
                findings = spyre.load_ktir(path).check()
            except MlirSyntaxError as error:
                findings = (error.finding,)
            assert findings, path


@pytest.mark.parametrize("name", [row for row in operation_rows() if not row.endswith("*")])
def test_every_row_has_a_form_or_a_reason(name):
    row = operation_rows()[name]
    assert bool(row.form) != bool(row.refused)
    assert elements_of(row.form) or row.refused


@pytest.mark.parametrize(
    "line",
    [
        "%c = arith.constant 0xFC00 : f16",
        "%c = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>",
        "%c = arith.constant true",
        "%c = arith.constant -4 : i32 loc(\"a.py\":3:1)",
        "%s = arith.addi %n, %n overflow<nsw, nuw> : index",
        "%a, %b = ktdp.get_compute_tile_id : index, index",
        "%a:2 = ktdp.get_compute_tile_id {x = 1 : i64} : index, index",
        "%e = tensor.empty() : tensor<4x64xf16>",
        "%e = tensor.empty() {key, other = [1, \"t\", #map], dim = affine_map<(i)[s] -> (i * s)>}"
        " : tensor<f32>",
        '%t = "test.op"(%n) : (index) -> !ktdp.access_tile<?x64xindex>',
        "%r = scf.for %i = %n to %n step %n iter_args(%a = %n) -> (index) {\n"
        "    scf.yield %a : index\n  }",
        "scf.for %i = %n to %n step %n : index {\n  }",
        "scf.for unsigned %i = %n to %n step %n : index {\n  }",
        "%e = tensor.empty() {a = @f::@g, b = dense<1> : tensor<2xi64>, c = 1.0 : f64}"
        " : tensor<f32>",
        "%c = arith.constant 3.40282347E+38 : f32",
        "%c = arith.cmpi slt, %n, %n : index\n  scf.if %c {\n  } else {\n  }",
        "%e = tensor.empty() : tensor<4xf16>\n  %x = tensor.extract_slice %e[0] [2] [1] :"
        " tensor<4xf16> to tensor<2xf16>",
    ],
)  # fmt: skip
def test_a_line(line):
    check_round_trip("#map = affine_map<(d0) -> (d0)>\n" + FUNCTION.format("%n: index", line))


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("", "SPY105", (1, 1)),
        (FUNCTION.format("%n: index", "%a = arith.addi %n %n : index"), "SPY102", (2, 20)),
        (FUNCTION.format("%n: index", "%a = arith.addx %n, %n : index"), "SPY110", (2, 6)),
        (FUNCTION.format("%n: index", "%a = arith.constant 99999999999999999999 : i64\n"
                         "%e = tensor.empty() {k = affine_map<(d0) -> (d1)>} : tensor<1xf16>"),
         "SPY122", (3, 46)),
        (FUNCTION.format("%n: index", "}"), "SPY107", (1, 1)),
        ("module {\n  func.func @f() {\n    return\n", "SPY103", (4, 1)),
        ("(" * 200, "SPY116", (1, 101)),
        ("#m = affine_map<(d0) -> (" + "-" * 50_000 + "d0)>", "SPY116", (1, 50_026)),
        (FUNCTION.format("", '"test.op() : () -> ()'), "SPY104", (2, 1)),
        (FUNCTION.format("", "%a#1 = arith.constant 1 : index"), "SPY102", (2, 1)),
    ],
)  # fmt: skip
def test_a_wrong_text(text, code, place):
    with pytest.raises(MlirSyntaxError) as raised:
        parse_tiles(text)
    assert raised.value.code == code
    assert (raised.value.location.line, raised.value.location.column) == place


def test_types():
    assert read_type("tensor<4 x ?xf16>").shape == (4, None)
    assert read_type("<4x64xindex>") == read_type("!ktdp.access_tile<4x64xindex>")
    assert read_type("memref<64xf32, #ktdp.memory_space<global>>").details
    assert read_type("!ktdp.runtime_arg<i32, granularity=4, upperbound = 8>").details == (
        ("granularity", 4),
        ("upperbound", 8),
    )
    bare = read_type("!ktdp.tile_future<tensor<1xf16>, groups = #g>")
    assert bare == read_type("<(tensor<1xf16>), groups = #g>")
    assert read_type("tensor<4xf17>").kind == read_type("vector<4xf16>").kind == "other"


def test_memory_spaces():
    assert memory_space("#ktdp.memory_space<ct_local, ct_id = 3>").tile == 3
    assert memory_space("#ktdp.spyre_memory_space<LX, core = 3>").is_local
    assert not memory_space("#ktdp.spyre_memory_space<HBM>").is_local
    assert memory_space("#ktdp.memory_space<card>") is None


def test_boxes_of_sets():
    points = affine("affine_set<(i, j)[s] : (i - 2 >= 0, -i + s - 1 >= 0, j == 3)>", 0)
    assert isinstance(points, AffineSet)
    assert points.box((10,)) == ((2, 9), (3, 3))
    assert points.contains((5, 3), (10,))
    assert not points.contains((10, 3), (10,))
    assert affine("affine_set<(i, j) : (i + j >= 0, -i >= 0, j >= 0)>", 0).box(()) is None
    assert affine("affine_set<(i) : (i >= 0)>", 0).box(()) is None
    assert affine("affine_set<(i) : (i floordiv 2 >= 0, -i >= 0)>", 0).box(()) is None


TOKEN = re.compile(r"%[\w#]+|[\w.!#]+|->|>=|\S")


def test_mutants_are_read_or_refused():
    """A token dropped, doubled or exchanged: never another exception, never another tree."""
    random_ = random.Random(7)
    for path in examples():
        text = path.read_text()
        tokens = list(TOKEN.finditer(text))
        for _ in range(60):
            at, other = random_.choice(tokens), random_.choice(tokens)
            new = random_.choice(["", other[0], "7", "f32", f"{at[0]} {at[0]}"])
            mutant = text[: at.start()] + new + text[at.end() :]
            try:
                module = parse_tiles(mutant)
                check_tiles(module)
            except SpyreError:
                continue
            assert parse_tiles(print_tiles(module)) == module


def test_a_number_argument_s_type_without_its_prefix():
    text = """func.func @f(%n: !ktdp.runtime_arg<i32, granularity = 4, upperbound = 8>) {
  %m = ktdp.runtime_arg_extract value from %n : <i32, granularity = 4, upperbound = 8> -> i32
  return
}
"""
    program = load_ktir(text)
    assert program.check() == ()
    assert load_ktir(str(program)) == program
