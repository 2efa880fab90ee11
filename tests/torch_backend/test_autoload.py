"""The entry point of ``import torch``: silent, light, and harmless the second time."""

from __future__ import annotations

from pathlib import Path

from tests.torch_backend.processes import run, run_anew, run_bare

MEASURE = """
import sys
import torch
before = set(sys.modules)
from spyre.torch_backend import autoload
autoload()
print("modules", sorted(set(sys.modules) - before))
"""


def entry_point(folder: Path) -> str:
    """A folder that, on the path, installs the entry point as the package does."""
    info = folder / "spyre_entry-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spyre-entry\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[torch.backends]\nspyre_entry = spyre.frontend:autoload\n"
    )
    return f"import sys\nsys.path.append({str(folder)!r})\n"


def test_import_torch_is_enough(tmp_path):
    code = """
        import torch
        assert torch.ones(2, device="spyre").sum().item() == 2
    """
    assert run_anew(code, entry_point(tmp_path), TORCH_DEVICE_BACKEND_AUTOLOAD="1") == ""


def test_autoload_can_be_switched_off(tmp_path):
    code = """
        import torch
        assert not hasattr(torch, "spyre")
        try:
            torch.device("spyre")
        except RuntimeError:
            print("unknown")
    """
    assert run_anew(code, entry_point(tmp_path), TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "unknown\n"


def test_silent_and_idempotent():
    code = """
        from spyre.torch_backend import autoload
        import torch
        autoload()
        module, to = torch.spyre, torch.Tensor.to
        autoload()
        assert torch.spyre is module and torch.Tensor.to is to
    """
    assert run_bare(code) == ""


def test_light():
    printed = run_bare(MEASURE)
    for heavy in ("numba", "torch._inductor", "torch._dynamo", "spyre.hw", "spyre.runtime", "lark"):
        assert f"'{heavy}" not in printed


def test_eager_steps_import_no_compiler():
    """Also joins, for whose sizes ATen calls Python, and networks with gradients."""
    code = """
        import sys
        import torch
        x = torch.ones(2, 1, 64, device="spyre", dtype=torch.float16)
        torch.cat([x, x])
        torch.nn.LSTM(64, 64, device="spyre", dtype=torch.float16)(x)[0].sum().backward()
        print("torch._dynamo" in sys.modules)
    """
    assert run(code) == "False\n"


def test_device_is_usable_in_a_spawned_process():
    code = """
        import torch.multiprocessing as mp
        context = mp.get_context("spawn")
        torch.ones(1, device="spyre")
        with context.Pool(1) as pool:
            print(pool.map(len, [[1, 2]]))
    """
    assert "[2]" in run(code)
