"""The mutation run itself: its independent look finds what leaves an argument; a short run."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa.sanitize_mutants import __main__ as mutants
from qa.sanitize_mutants.touched import Outside, find_outside
from spyre.hw.device.device import Device
from spyre.mlir.bundle import load_bundle
from spyre.runtime.kernel.kernel import Kernel, Launch, PoolBuffer
from tests.sanitizer.programs import NBYTES, right
from tests.sanitizer.test_sanitizer import tensor, too_far


@pytest.mark.parametrize("pool", [False, True])
def test_a_tile_too_many_is_outside(pool: bool, tmp_path: Path):
    device = Device()
    bundle = too_far(tmp_path, pool)
    tensors = {k: tensor(device, name) for k, name in enumerate(("x", "y"))}
    memory = PoolBuffer(device.allocate(NBYTES, 0), NBYTES)
    launch = Launch(tensors, memory if pool else None)
    (found,) = find_outside(bundle, Kernel(bundle, device), launch)
    base = memory.address_bytes if pool else tensors[0].address_bytes
    assert found == Outside(0, "Tensor0", base + NBYTES + 1534)


def test_nothing_is_outside(tmp_path: Path):
    device = Device()
    bundle = load_bundle(right(tmp_path))
    tensors = {k: tensor(device, f"t{k}") for k in range(3)}
    launch = Launch(tensors, PoolBuffer(device.allocate(NBYTES), NBYTES))
    assert list(find_outside(bundle, Kernel(bundle, device), launch)) == []


@pytest.mark.shared
def test_a_short_run(
    shared_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    options = ["--count", "60", "--cases", "15", "--seed", "3", str(shared_dir / "bundles")]
    monkeypatch.setattr("sys.argv", ["sanitize_mutants", *options])
    assert mutants.main() == 0
    assert capsys.readouterr().out.startswith("60 mutants of 15 cases\n")
