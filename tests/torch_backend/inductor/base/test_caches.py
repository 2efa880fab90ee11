"""Compiled functions from caches: hits in other processes, misses for all that counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import spyre
from spyre.torch_backend.inductor.base.settings import cache_key, source_digest
from tests.torch_backend.processes import run, run_anew

LINES = """
from torch._dynamo.utils import counters
from spyre.torch_backend.inductor.hints import spyre_hint
from spyre.torch_backend.inductor.hints import declare_tensor_dim, name_tensor_dims

def f(a, b, c):
    return (a + b) * c

def hinted(a, b, c):
    with spyre_hint(slices={"A": 2}):
        return (a + b) * c

def hinted_otherwise(a, b, c):
    with spyre_hint(slices={"A": 4}):
        return (a + b) * c

torch.manual_seed(0)
inputs = [torch.randn(128, 64).half().to("spyre") for _ in range(3)]

def show(function, *, given=None, **named):
    torch.compiler.reset()
    counters.clear()
    given = inputs if given is None else given
    result = torch.compile(function, **named)(*given)
    assert torch.equal(result.cpu(), f(*given).cpu())
    graph, aot = counters["inductor"], counters["aot_autograd"]
    assert not graph["fxgraph_cache_bypass"] and not aot["autograd_cache_bypass"]
    hits = aot["autograd_cache_hit"], graph["fxgraph_cache_hit"]
    assert hits in ((0, 0), (1, 1)), hits
    print("hit" if hits[0] else "miss")
"""


def verdicts(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line in ("hit", "miss")]


VARIATIONS = """
import os
from spyre.torch_backend.inductor import config
from spyre.torch_backend.inductor.lowering.decompositions import _graphs_by_call
show(f)
assert not _graphs_by_call
show(f, options={"spyre.lx_planning": False})
with config.patch(core_id_k_fast_emission=False):
    show(f)
os.environ["SENCORES"] = "4"
show(f)
os.environ["DXP_LX_FRAC_AVAIL"] = "0.5"
show(f)
show(f)
del os.environ["SENCORES"], os.environ["DXP_LX_FRAC_AVAIL"]
declare_tensor_dim("A", 128)
show(hinted)
show(hinted_otherwise)
show(hinted)
for tensor in inputs:
    name_tensor_dims(tensor, ("A", None))
show(hinted)
show(hinted)
show(f)
"""


TRAINING = """
def loss(x, w):
    return torch.softmax(x @ w, -1).square().sum()

x, w = (torch.randn(64, 64).half().to("spyre") for _ in range(2))
w.requires_grad_()

def step():
    torch.compiler.reset()
    counters.clear()
    torch.compile(loss)(x, w).backward()
    print("hit" if counters["aot_autograd"]["autograd_cache_hit"] else "miss")
    assert not counters["inductor"]["fxgraph_cache_bypass"]

step()
compiled = w.grad.cpu()
w.grad = None
loss(x, w).backward()
assert torch.allclose(compiled, w.grad.cpu(), atol=2e-2, rtol=2e-2)
"""


def test_hits_across_processes_and_misses(tmp_path):
    """Functions, their variations, and backward graphs.

    Hashes of strings differ between a new interpreter and what the fork server makes.
    """
    place = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    first = run_anew(LINES + "show(f); show(f)" + TRAINING, **place)
    assert verdicts(first) == ["miss", "hit", "miss"]
    found = verdicts(run(LINES + VARIATIONS + TRAINING, **place))
    settings = ["hit", "miss", "miss", "miss", "miss", "hit"]
    hints = ["miss", "miss", "hit"]
    names = ["miss", "hit", "miss"]
    training = ["hit"]
    assert found == settings + hints + names + training


def test_the_key_changes_with_every_source_file(tmp_path, monkeypatch):
    """Of a copy of the package."""
    copy, changed = tmp_path / "spyre", "torch_backend/inductor/tiling/coarse_tile.py"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(spyre.__file__).parent, copy, ignore=ignored)
    monkeypatch.setattr(spyre, "__file__", str(copy / "__init__.py"))
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "cache"))
    found = []
    for line in ("", "", "# another line\n"):
        with (copy / changed).open("a") as file:
            file.write(line)
        source_digest.cache_clear()
        found.append(cache_key())
    source_digest.cache_clear()
    assert found[0] == found[1] != found[2]
