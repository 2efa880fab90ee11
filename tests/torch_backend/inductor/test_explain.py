"""Output for users: passes, notes beside kept kernels, `spyre.explain`."""

from __future__ import annotations

import pytest
import torch

import spyre
from spyre.cli.run import main
from spyre.errors import SpyreError
from spyre.torch_backend.inductor.base.notes import PassPrinter
from spyre.torch_backend.inductor.bundles import kernels
from spyre.torch_backend.inductor.hints import declare_tensor_dim, name_tensor_dims, spyre_hint
from tests.torch_backend.inductor.kernel.test_passes import PASSES
from tests.torch_backend.processes import run_anew


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    with torch.compiler.config.patch(force_disable_caches=True):
        yield


def tiled(a, b, c):
    with spyre_hint(slices={"A": 2}), spyre_hint(slices={"B": 4}):
        return (a + b) * c


@pytest.fixture
def tensors():
    """The document's example."""
    declare_tensor_dim("A", 1024)
    declare_tensor_dim("B", 4096)
    found = [torch.randn(1024, 4096).half().to("spyre") for _ in range(3)]
    for tensor in found:
        name_tensor_dims(tensor, ("A", "B"))
    return found


def test_operations_before_and_after_each_pass(tmp_path, monkeypatch, tensors):
    monkeypatch.setenv("SPYRE_DUMP_PASSES", str(tmp_path))
    torch.compile(tiled)(*tensors)
    (place,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert place.name.endswith("-graph")
    names = sorted(path.name for path in place.rglob("*.txt"))
    assert names == sorted(
        f"{k:02d}-{name}.{when}.txt"
        for k, name in enumerate(PASSES, 1)
        for when in ("before", "after")
    )
    (kernel,) = (place / "kernels").iterdir()
    assert {path.name[3:-11] for path in kernel.glob("*.before.txt")} >= {"span_reduction"}
    before = (place / "06-coarse_tile.before.txt").read_text()
    after = (place / "06-coarse_tile.after.txt").read_text()
    assert "ranges=[1024, 4096]," in before
    assert "loop_count" not in before
    assert "named_dims = ('A', 'B')" in before
    for line in (
        "buf0: ComputedBuffer",
        "    layout = FixedTiledLayout(size=[512, 1024], stride=[1024, 1], "
        "device_size=[16, 512, 64], lane=1)",
        "    loop_group_id = (0, 0)",
        "    loop_count = [2, 4]",
        "    loop_tiled_dims = [[0], [1]]",
        "    Pointwise(",
        "        ranges=[512, 1024],",
        "        inner_fn: load(arg0_1, 4096*i0 + i1)",
        "                  load(arg1_1, 4096*i0 + i1)",
        "                  return (arg0_1 + arg1_1)",
    ):
        assert line in after.splitlines(), line


def test_passes_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPYRE_DUMP_PASSES", str(tmp_path / "file"))
    with pytest.raises(SpyreError) as caught:
        PassPrinter(str).run("nothing", lambda graph: None, "")
    assert caught.value.code == "SPY951"


def test_torch_logs():
    shown = run_anew(
        """
        torch.compile(lambda a: a + 1)(torch.ones(3, device="spyre"))
        """,
        TORCH_LOGS="+spyre",
        TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
    )
    assert "after coarse_tile: no change" in shown
    assert "buf0: ComputedBuffer" in shown


def test_kept_kernels_run_and_say_how_they_came_about(tmp_path, monkeypatch, capsys):
    a, b = torch.randn(128, 256).half().to("spyre"), torch.randn(256, 192).half().to("spyre")
    monkeypatch.setenv("SPYRE_KEEP", str(tmp_path))
    torch.compile(lambda a, b: torch.softmax(a @ b, -1))(a, b)
    (place,) = (p for p in tmp_path.iterdir() if "sdsc" in p.name)
    divisions = (place / "divisions.txt").read_text()
    assert "batchmatmul: cores 32; c0: 128 in 32, c1: 192 in 1" in divisions
    assert "cost_model_matmul_division: c0:8, c1:3 in" in divisions
    assert "lx_division: c0:32, so that results stay in LX" in divisions
    assert "work_distribution" in divisions
    assert "LX plan: 5 of 8 buffers in LX" in (place / "lx.txt").read_text()
    layouts = (place / "layouts.txt").read_text().splitlines()
    assert layouts[0].startswith("arg_0 input: float16[128, 256], strides [256, 1] -> SEN169_FP16")
    assert "OpSpec(" in (place / "operations.txt").read_text()
    assert main([str(place), "--check"]) == 0
    assert main([str(place), "--sanitize"]) == 0
    assert "nothing found" in capsys.readouterr().out


def test_notes_are_made_only_for_those_who_look(monkeypatch):
    monkeypatch.delenv("SPYRE_KEEP", raising=False)
    notes = []
    made = kernels.InductorKernel.__init__

    def init(self, *args, **named):
        made(self, *args, **named)
        notes.append(dict(self.notes))

    monkeypatch.setattr(kernels.InductorKernel, "__init__", init)
    torch.compile(lambda a: a + 1)(torch.ones(3, device="spyre"))
    assert notes == [{}]


def test_explain(capsys, tensors):
    found = spyre.explain(tiled, *tensors)
    shown = capsys.readouterr().out
    assert shown == f"{found}\n"
    assert len(found.graphs) == len(found.operations) == len(found.kernels) == 1
    for text in (
        "torch.ops.spyre.run.default",
        "loop_count = [2, 4]",
        "2 times:\n    4 times:\n      add\n      mul",
        "in  arg_0",
        "lx 0x0",
        "0 add over c0: 512, c1: 1024",
        "numbered along c",
        "LX plan: ",
        "2 SDSCs, pool of 0 bytes",
    ):
        assert text in shown, text


def test_explain_shows_the_slices_of_cores(capsys):
    spyre.explain(torch.neg, torch.ones(64, 64).half().to("spyre"))
    shown = capsys.readouterr().out
    assert "0 neg: elements by core" in shown
    rows = [line.split() for line in shown.splitlines() if line.strip().startswith("31 ")]
    assert rows == [["31", "62-63", "0-63"]]


def test_explain_of_nothing_on_the_card():
    """A product: the host's compiler would translate anything else to C++."""
    with pytest.raises(SpyreError) as caught:
        spyre.explain(torch.mm, torch.ones(3, 3), torch.ones(3, 3))
    assert caught.value.code == "SPY969"
