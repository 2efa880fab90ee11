"""Beside a checkout of ktir-cpu: none is here, so a stub has its interface."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks import ktir
from benchmarks.__main__ import run
from benchmarks.suite import Section, SectionError

STUB = """
import numpy as np

class KTIRInterpreter:
    def load(self, source):
        assert "add_kernel" in source, source
        self.elements = int(source.split("memref<")[1].split("xf16")[0])

    def execute_function(self, name, x_ptr, y_ptr, output_ptr, BLOCK_SIZE):
        assert name == "add_kernel"
        assert BLOCK_SIZE * 32 == self.elements
        assert x_ptr.shape == y_ptr.shape == output_ptr.shape == (self.elements,)
        return {"output_ptr": x_ptr + y_ptr * FACTOR}
"""
_VIEW = """  %vNAME = ktdp.construct_memory_view %NAME, sizes: [4096], strides: [1] {
    coordinate_set = affine_set<(d0) : (d0 >= 0, -d0 + 4095 >= 0)>,
    memory_space = #ktdp.memory_space<global>} : memref<4096xf16>
  %tNAME = ktdp.construct_access_tile %vNAME[%first] {
    access_tile_set = affine_set<(d0) : (d0 >= 0, -d0 + 127 >= 0)>}
    : memref<4096xf16> -> !ktdp.access_tile<128xindex>
"""
TEXT = f"""func.func @add_kernel(
    %x_ptr: index, // [N]
    %y_ptr: index,
    %output_ptr: index,
    %BLOCK_SIZE: index // 128
) attributes {{grid = [32, 1]}} {{
  %tile = ktdp.get_compute_tile_id : index
  %c128 = arith.constant 128 : index
  %first = arith.muli %tile, %c128 : index
{"".join(_VIEW.replace("NAME", name) for name in ("x_ptr", "y_ptr", "output_ptr"))}
  %a = ktdp.load %tx_ptr : !ktdp.access_tile<128xindex> -> tensor<128xf16>
  %b = ktdp.load %ty_ptr : !ktdp.access_tile<128xindex> -> tensor<128xf16>
  %c = arith.addf %a, %b : tensor<128xf16>
  ktdp.store %c, %toutput_ptr : tensor<128xf16>, !ktdp.access_tile<128xindex>
  return
}}
"""


@pytest.fixture
def checkout(tmp_path):
    def make(factor):
        (tmp_path / "ktir_cpu").mkdir()
        (tmp_path / "ktir_cpu" / "__init__.py").write_text(STUB.replace("FACTOR", factor))
        path = tmp_path / ktir.cases()[0].file
        path.parent.mkdir(parents=True)
        path.write_text(TEXT)
        return tmp_path

    return make


def small():
    case = ktir.cases()[0]
    sizes = dict.fromkeys(case.sizes, (8192,))
    resized = {4096: 8192, 4095: 8191, 128: 256, 127: 255}
    return replace(case, sizes=sizes, numbers={"BLOCK_SIZE": 256}, resized=resized)


def called(case, checkout):
    """Their result after one call."""
    arrays = {name: np.zeros(size, np.float16) for name, size in case.sizes.items()}
    with ktir.TheirSide(case, checkout, arrays) as side:
        side.call()
        return side.result()


def test_both_sides_run_and_are_right(checkout):
    rows = {row.name.partition(": ")[2]: row for row in ktir.beside(small(), checkout("1"), 2)}
    assert len(rows["ktir-cpu"].values) == 2
    assert rows["card"].median > 0
    assert rows["ktir-cpu, worst error"].median < 0.001
    assert not rows["card, worst error"].missed
    assert rows["against ktir-cpu, processor time"].target == 25
    assert rows["linking, processor time"].target == 100
    times = rows["ktir-cpu, processor time"], rows["card, processor time"]
    assert all(len(row.values) == 2 for row in times)
    assert len(rows["against ktir-cpu, processor time"].values) == 2


def test_wrong_results_of_the_other_side_are_seen(checkout):
    rows = {row.name.partition(": ")[2]: row for row in ktir.beside(small(), checkout("3"), 1)}
    assert rows["ktir-cpu, worst error"].median > 0.5


def test_what_the_other_side_says_is_passed_on(checkout):
    place = checkout("nonsense")
    with pytest.raises(SectionError, match=r"vector add, 4 M: ktir-cpu failed: [\s\S]*NameError"):
        called(small(), place)


def test_a_directory_that_is_no_checkout(tmp_path):
    with pytest.raises(SectionError, match="no checkout of ktir-cpu: it has no directory ktir_cpu"):
        next(ktir.measure(tmp_path))


def test_a_case_that_fails_does_not_drop_the_others(checkout, monkeypatch):
    place = checkout("1")
    chosen = [replace(small(), name="absent", file="nowhere.mlir"), small()]
    monkeypatch.setattr(ktir, "cases", lambda: chosen)
    section = Section("ktir", "", lambda quick: ktir.measure(place, 1))
    results = run([section], quick=True)
    assert "absent: " in results.errors["ktir"]
    assert "it has no nowhere.mlir" in results.errors["ktir"]
    assert {row.name.partition(": ")[0] for row in results.sections["ktir"]} == {"vector add, 4 M"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('{"output_ptr"', '{"z"', "no result is called output_ptr, only z"),
        ("x_ptr + y_ptr * FACTOR", "x_ptr[:9]", "9 elements as output_ptr"),
        ("class KTIRInterpreter", "class Other", "cannot import name"),
    ],
)
def test_a_checkout_with_another_interface(checkout, monkeypatch, old, new, said):
    monkeypatch.setitem(globals(), "STUB", STUB.replace(old, new))
    with pytest.raises(SectionError, match=said):
        called(small(), checkout("1"))


def test_numbers_are_those_the_function_takes():
    case = small()
    assert ktir.taken_numbers(case, TEXT) == {"BLOCK_SIZE": 256}
    earlier = "func.func @add_kernel(%x_ptr: index, %y_ptr: index, %output_ptr: index) {"
    assert ktir.taken_numbers(case, earlier) == {}
    with pytest.raises(SectionError, match="add_kernel takes STRIDE in this checkout"):
        ktir.taken_numbers(case, TEXT.replace("BLOCK_SIZE", "STRIDE"))
    with pytest.raises(SectionError, match="no function add_kernel"):
        ktir.taken_numbers(case, "func.func @other(%x_ptr: index) {")


def test_the_other_side_has_as_many_threads_as_the_card(checkout, monkeypatch):
    monkeypatch.setenv("SPYRE_NUM_THREADS", "1")
    monkeypatch.setitem(globals(), "STUB", STUB.replace(
        "import numpy as np", "import os; assert os.environ['OPENBLAS_NUM_THREADS'] == '1'\n"
        "import numpy as np"))  # fmt: skip
    assert called(small(), checkout("1")).size == 8192


def test_texts_are_resized_and_names_kept():
    text = ktir.resized_text(TEXT, small().resized)
    assert "memref<8192xf16>" in text
    assert "-d0 + 8191 >= 0" in text
    assert "access_tile<256xindex>" in text
    assert "%c128 = arith.constant 256 : index" in text
    assert "%BLOCK_SIZE: index // 256\n) attributes {grid = [32, 1]}" in text
