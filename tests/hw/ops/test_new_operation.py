"""A made-up operation, added to a copy of the package at the places that CONTRIBUTING.md names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spyre

PACKAGE = Path(spyre.__file__).parent
ROOT = Path(__file__).parents[3]

PLACES = {
    "hw/ops/elementwise.py": (
        '    _row("neg", 1, "-x", code_form="negative"),\n',
        '    _row("cubefwd", 1, "x³", "cube", code_form="cube"),\n',
    ),
    "hw/kernels/vector_math.py": (
        "@inline\ndef square_root(x):",
        "@inline\ndef cube(x):\n    return x * x * x\n\n\n",
    ),
    "hw/kernels/families/elementwise.py": (
        "    elif opcode == OP.NEG:\n",
        "    elif opcode == OP.CUBE:\n"
        "        for i in range(n):\n"
        "            out[i] = cube(a[i])\n",
    ),
    "hw/reference/definitions.py": (
        '    "neg": np.negative,\n',
        '    "cube": lambda x: x * x * x,\n',
    ),
}
"""File of the package: a text in it, and the text that is inserted before that one."""

SCRIPT = """
import numpy as np
from spyre.dtypes import decode_device, encode_device
from spyre.hw.interpreter import background as interpreter
from spyre.hw.kernels.dl16_functions import CODE_OPERATIONS
from spyre.hw.ops import OPS, SPEC_NAMES
from spyre.hw.reference.definitions import define
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise
from tests.hw.harness import allocations_of, engine, link, region, windows
from tools.vector_bounds import compiled

assert "cubefwd" in SPEC_NAMES and not OPS["cubefwd"].transcendental
codes = np.arange(65536).astype(np.uint16)
expected = encode_device(define("cube", decode_device(codes, "SEN169_FP16")), "SEN169_FP16")
places = [HostOperand(region(k)) for k in range(2)]
op = build_operation(pointwise("cubefwd", (1024, 64), places[:1], places[1], {"mb": 4}))
device, found = engine(), windows(op)
device.memory.write(found[0].low, codes.view(np.uint8))
linked, fault = link(device, [op], allocations_of(found)), np.zeros(1, np.int64)
memory, scratch = device.memory.pointer, device.executor._scratch_pointer
interpreter.drive(linked.host_dispatch, linked.tables, memory, scratch, 0, 1, fault)
result = device.memory.read(found[1].low, 2 * codes.size).view(np.uint16)
assert np.array_equal(result, expected)
result[:] = 0
compiled(CODE_OPERATIONS["cube"], 1)(codes.ctypes.data, result.ctypes.data, codes.size)
assert np.array_equal(result, expected)
"""


@pytest.mark.slow
def test_an_operation_takes_four_source_places(tmp_path: Path):
    """Row, formula, loop and definition: it then runs, and has a form on vectors of codes."""
    shutil.copytree(PACKAGE, tmp_path / "spyre", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (before, text) in PLACES.items():
        path = tmp_path / "spyre" / name
        source = path.read_text()
        assert source.count(before) == 1, name
        path.write_text(source.replace(before, text + before))
    kernel = tmp_path / "spyre/hw/kernels/families/elementwise.py"
    line = "    exponential,\n"
    kernel.write_text(kernel.read_text().replace(line, f"    cube,\n{line}", 1))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))),
        "SPYRE_MEANWHILE": "1",
        "SPYRE_CACHE_DIR": str(tmp_path / "cache"),
    }
    run = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_contributing_names_the_places():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("## Adding an operation")[2].partition("\n## ")[0]
    assert [name for name in PLACES if f"spyre/{name}" not in section] == []
