"""Explanations of operations: golden texts, and no real operation without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.mlir.explain import explain_operation
from spyre.mlir.sdsc.reader import read_operation

from .sample_bundles import SAMPLES

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", SAMPLES)
def test_golden(name: str, tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    bundle = load_bundle(write_bundle(SAMPLES[name](), tmp_path))
    texts = [explain_operation(operation) for operation in bundle.operations.values()]
    golden(GOLDEN / f"explain_{name}.txt", "\n".join(texts))


def test_facts() -> None:
    (sdsc,) = SAMPLES["masked_sum"]().sdscs.values()
    head, dims, source, result, constant = explain_operation(read_operation(sdsc, "f")).splitlines()
    assert head.startswith(f"{sdsc.name}: ")
    assert dims == "  iterates mb 32 in 2 slices of 16; out 128, last 28 masked"
    assert f"{32 * 256} B (64 sticks), {128 * (32 + 16)} B per core" in source
    assert result.startswith("  output ")
    assert f"{32 * 128} B (32 sticks)" in result
    assert "samv-maskvalue = 0 (" in constant


@pytest.mark.shared
def test_every_real_operation_can_be_explained(shared_dir: Path) -> None:
    for path in sorted(shared_dir.glob("bundles/**/bundle.mlir")):
        for operation in load_bundle(path).operations.values():
            assert operation.sdsc_name in explain_operation(operation)
