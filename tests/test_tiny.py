"""The public promise on one page: one small example of everything the simulator is for.

Runs first and in seconds once kernels are compiled: `pytest tests/test_tiny.py`. Only public names
are used here, so this page also shows them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import spyre
from spyre.cli.compile import main as spyre_compile
from spyre.cli.run import main as spyre_run
from spyre.layout import SpyreTensorLayout

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ADD = EXAMPLES / "add_loop"


def small_integers(*shape: int) -> np.ndarray:
    """Numbers whose sums are exact in DL16, too."""
    return np.random.default_rng(0).integers(-100, 100, shape).astype(np.float16)


@pytest.fixture
def copied(tmp_path):
    """``copied(name)`` returns a copy of an example, which may be changed or compiled."""
    return lambda name: Path(shutil.copytree(EXAMPLES / name, tmp_path / name))


def test_a_bundle_is_read_and_checked():
    bundle = spyre.load_bundle(ADD)
    assert bundle.check() == ()
    assert [op.name for op in bundle.operations.values()] == ["add"]


def test_a_bundle_runs():
    x, y = small_integers(256, 512), small_integers(256, 512)[::-1].copy()
    result = spyre.run(ADD, [x, y])
    assert np.array_equal(result.outputs[0], x.astype(np.float32) + y)
    assert result.counters.hbm_read_bytes == 2 * x.nbytes


def test_an_error_says_where_and_what(copied):
    directory = copied("add_loop")
    text = (directory / "bundle.mlir").read_text()
    (directory / "bundle.mlir").write_text(text.replace("(%i_0)[%arg_0]", "(%i_0)[%arg_9]"))
    with pytest.raises(spyre.SpyreError) as caught:
        spyre.run(directory)
    finding = caught.value.finding
    assert (finding.code, finding.location.line) == ("SPY130", 29)
    assert "'%arg_9' is not defined" in str(finding)


def test_spyre_run_compares(capsys, tmp_path):
    softmax = EXAMPLES / "softmax"
    files = [str(softmax), "-i", str(softmax / "input.npy"), "-o"]
    assert spyre_run([*files, str(softmax / "expected.npy")]) == 0
    assert "all 32768 elements agree" in capsys.readouterr().out
    wrong = np.load(softmax / "expected.npy")
    wrong[5, 70] += 0.5
    np.save(tmp_path / "wrong.npy", wrong)
    assert spyre_run([*files, str(tmp_path / "wrong.npy")]) == 1
    assert "worst element (5, 70)" in capsys.readouterr().out


def test_the_sanitizer_is_silent_about_a_right_program():
    result = spyre.run(ADD, device=spyre.Device(sanitize=True))
    assert result.sanitizer == ()


def test_a_profile_is_a_table():
    profile = spyre.profile(spyre.run(EXAMPLES / "softmax"))
    rows = profile.to_json()["executes"]
    assert [row["op"] for row in rows] == ["max", "sub", "exp", "sum", "realdiv"]
    assert "bound by" in str(profile)
    assert profile.makespan_ns > 0


def test_a_kernel_runs_over_larger_tensors(copied):
    directory = copied("matmul_tile")  # compiled for 1024 rows
    assert spyre_compile(["--bundle", "-q", "-d", str(directory)]) == 0
    card = spyre.FlexDevice()
    a, b = small_integers(2048, 256) / 64, np.eye(256, 128, dtype=np.float16)
    operands = [card.to_device(a.astype(np.float16)), card.to_device(b), card.empty((2048, 128))]
    with card.recording() as commands:
        plan = spyre.prepare_kernel(directory, card)
        spyre.launch_kernel(plan, operands, card.default_stream)
        card.synchronize()
    assert np.array_equal(card.to_host(operands[2]).to_values(), a[:, :128])
    assert len(commands.host_operations) == 2  # one correction per tile


def test_pytorch_runs_on_the_card():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(small_integers(4, 64))
    on_card = x.to("spyre")
    assert on_card.device.type == "spyre"
    assert isinstance(on_card.device_tensor_layout(), SpyreTensorLayout)
    torch.spyre.reset_fallbacks()
    assert torch.equal((on_card + on_card).relu().cpu(), (x + x).relu())
    assert not torch.spyre.fallbacks()


def test_pytorch_functions_are_compiled():
    torch = pytest.importorskip("torch")

    def function(x, y):
        return (x + y).relu() * y

    x, y = torch.from_numpy(small_integers(2, 64, 64)) / 8
    compiled = torch.compile(function)(x.to("spyre"), y.to("spyre")).cpu()
    assert torch.equal(compiled, function(x.to("spyre"), y.to("spyre")).cpu())
    torch.testing.assert_close(compiled, function(x, y), rtol=2**-9, atol=0)
