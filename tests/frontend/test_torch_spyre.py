"""torch-spyre itself, where SPYRE_TORCH_SPYRE is the path of a checkout."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import spyre
from spyre.frontend.extension import EXPORTS
from tests.torch_backend.processes import run_anew

ROOT = Path(__file__).parents[2]
CHECKOUT = os.environ.get("SPYRE_TORCH_SPYRE", "")
AUTOLOAD = "import torch\nfrom spyre.frontend import autoload\nautoload()\n"

pytestmark = pytest.mark.skipif(not CHECKOUT, reason="SPYRE_TORCH_SPYRE is no checkout")

COMPILE = """
    torch.manual_seed(0)
    x, w = torch.randn(128, 256).half(), torch.randn(256, 128).half()
    y = torch.randn(128, 128).half()

    def compute(x, w, y):
        return torch.softmax(x @ w, -1) * y + torch.exp(-y.abs())

    card = torch.compile(compute)(*(t.to("spyre") for t in (x, w, y)))
    # All bits of the card's 16-bit floats.
    out = torch.ops.aten._copy_from(card, torch.empty(card.size()))
    expected = compute(x.float(), w.float(), y.float())
    torch.testing.assert_close(out, expected, rtol=0.1, atol=0.1)
    import numpy as np
    np.savez(FOLDER + "/arrays.npz", x=x, w=w, y=y, out=out)
"""


def test_own_device_and_torch_spyres_give_equal_bits(tmp_path):
    """A bundle that torch-spyre compiled, run there and by `spyre.run`."""
    run_anew(
        COMPILE.replace("FOLDER", repr(str(tmp_path))),
        AUTOLOAD,
        PYTHONPATH=os.pathsep.join([CHECKOUT, str(ROOT)]),
        PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        SPYRE_FRONTEND="torch-spyre",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
        TORCHINDUCTOR_COMPILE_THREADS="1",
    )
    (module,) = (tmp_path / "inductor-spyre").glob("*/bundle.mlir")
    arrays = np.load(tmp_path / "arrays.npz")
    result = spyre.run(module.parent, [arrays[name] for name in "xwy"])
    (found,) = result.outputs
    assert found.dtype == arrays["out"].dtype == np.float32
    assert np.array_equal(found.view(np.uint32), arrays["out"].view(np.uint32))


ABSENT = {"createSpyreCCLBackend", "_logging"}
"""Collectives, which `docs/frontend.md` lists as not there; a module of its own."""


def test_every_name_torch_spyre_takes_from_its_extension_is_there():
    taken = set()
    for path in Path(CHECKOUT, "torch_spyre").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "torch_spyre._C":
                taken |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch_spyre._C":
                taken.add(node.attr)
    assert {"SpyreTensorLayout", "prepare_kernel"} <= taken
    assert taken - EXPORTS.keys() <= ABSENT
