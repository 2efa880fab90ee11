"""torch-spyre itself, where SPYRE_TORCH_SPYRE is the path of a checkout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import spyre
from spyre.frontend.upstream import missing
from tests.torch_backend.processes import run_anew

ROOT = Path(__file__).parents[2]
CHECKOUT = os.environ.get("SPYRE_TORCH_SPYRE", "")
AUTOLOAD = "import torch\nfrom spyre.frontend import autoload\nautoload()\n"
OWN_AUTOLOAD = """
import torch, torch_spyre
from spyre.frontend.activation import install_finder
install_finder()
torch_spyre._autoload()
"""
"""As torch loads torch-spyre where its entry point comes first."""

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


def run_frontend(code: str, cache: Path, prologue: str = AUTOLOAD, **environment: str) -> None:
    """Run ``code`` with torch-spyre on our device in a new interpreter, with torch's ``cache``."""
    run_anew(
        code,
        prologue,
        PYTHONPATH=os.pathsep.join([CHECKOUT, str(ROOT)]),
        PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        SPYRE_FRONTEND="torch-spyre",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        TORCHINDUCTOR_CACHE_DIR=str(cache),
        TORCHINDUCTOR_COMPILE_THREADS="1",
        **environment,
    )


def test_own_device_and_torch_spyres_give_equal_bits(tmp_path):
    """A bundle that torch-spyre compiled, run there and by `spyre.run`."""
    run_frontend(COMPILE.replace("FOLDER", repr(str(tmp_path))), tmp_path)
    (module,) = (tmp_path / "inductor-spyre").glob("*/bundle.mlir")
    arrays = np.load(tmp_path / "arrays.npz")
    result = spyre.run(module.parent, [arrays[name] for name in "xwy"])
    (found,) = result.outputs
    assert found.dtype == arrays["out"].dtype == np.float32
    assert np.array_equal(found.view(np.uint32), arrays["out"].view(np.uint32))


def test_a_checkout_asks_for_nothing_that_is_not_there():
    for folder in ("torch_spyre", "tests"):
        assert missing(Path(CHECKOUT) / folder) == []


def test_device_memory_and_a_group():
    """The start of vLLM and torch-spyre's profiler test need these."""
    code = """
    import torch.distributed as dist
    dist.init_process_group("cpu:gloo,spyre:spyreccl", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(64).half().to("spyre")
    with torch.profiler.profile(profile_memory=True) as prof:
        y = torch.empty(64, device="spyre")
        dist.all_reduce(x)
    assert sum(e.device_memory_usage for e in prof.key_averages() if e.key == "aten::empty") == 256
    assert x.cpu().sum() == 64
    dist.destroy_process_group()
    """
    run_anew(
        code,
        AUTOLOAD,
        PYTHONPATH=os.pathsep.join([CHECKOUT, str(ROOT)]),
        SPYRE_FRONTEND="torch-spyre",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


VIEWS = """
    import warnings

    x = torch.randn(8, 64, 64).half()
    add = torch.compile(lambda a: a + a, dynamic=False)
    warned = []
    for row in ROWS:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            add(x.to("spyre")[row])
        warned.append([str(w.message) for w in caught if "storage offset" in str(w.message)])
    three = x[:3].to("spyre")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # views of one storage, each of which is right
        torch.compile(torch.add, dynamic=False)(three[1], three[2])
    assert [len(messages) for messages in warned] == [0] * (len(ROWS) - 1) + [1], warned
    assert SAYS in warned[-1][0], warned
"""


def test_a_kernel_run_for_a_view_at_another_offset_warns(tmp_path):
    """In the process that compiled it, and in one that takes it from torch's cache."""
    for rows, says in (((0, 2), "before with (0, 0)"), ((2,), "accesses it from byte 0")):
        run_frontend(VIEWS.replace("ROWS", str(rows)).replace("SAYS", repr(says)), tmp_path)


EVERY_VIEW = """
    import warnings

    x = torch.arange(8 * 64 * 64).reshape(8, 64, 64) % 512
    add = torch.compile(lambda a: a + a, dynamic=False)
    card = x.half().to("spyre")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for row in ROWS:
            assert add(card[row]).cpu().equal((x[row] * 2).half()), row
"""


def test_compiled_again_for_views_at_other_offsets(tmp_path):
    """In the process that compiled it, and in one with torch's cache of another view."""
    for rows, prologue in (((0, 2, 5), AUTOLOAD), ((3, 0), OWN_AUTOLOAD)):
        code = EVERY_VIEW.replace("ROWS", str(rows))
        run_frontend(code, tmp_path, prologue, SPYRE_GUARD_OFFSETS="1")


ONE_ROW = """
    x, position = torch.ones(1, 512).half(), torch.tensor([0], dtype=torch.int32)
    pick = torch.compile(lambda x, position: torch.index_select(x, 0, position), dynamic=False)
    assert pick(x.to("spyre"), position.to("spyre")).cpu().equal(x)
"""


def test_a_tensor_that_the_kernel_does_not_use(tmp_path):
    """Of one row no position is read: the kernel takes arguments 1 and 2 of three."""
    run_frontend(ONE_ROW, tmp_path)
