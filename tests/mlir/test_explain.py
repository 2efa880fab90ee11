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
    texts = [str(explain_operation(operation)) for operation in bundle.operations.values()]
    golden(GOLDEN / f"explain_{name}.txt", "\n".join(texts))


def test_facts() -> None:
    (sdsc,) = SAMPLES["masked_sum"]().sdscs.values()
    explanation = explain_operation(read_operation(sdsc, "f"))
    assert [(d.dim, d.slices, d.per_core, d.padding) for d in explanation.dims] == [
        ("mb", 2, 16, 0),
        ("out", 1, 128, 28),
    ]
    source, result = explanation.tensors
    assert (source.allocation_bytes, source.touched_bytes) == (32 * 256, 128 * (32 + 16))
    assert (result.use, result.allocation_bytes) == ("output", 32 * 128)
    assert explanation.constants[0].value == 0.0


@pytest.mark.shared
def test_every_real_operation_can_be_explained(shared_dir: Path) -> None:
    for path in sorted(shared_dir.glob("bundles/**/bundle.mlir")):
        for operation in load_bundle(path).operations.values():
            assert operation.sdsc_name in str(explain_operation(operation))
