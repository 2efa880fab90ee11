"""Fields without effect: contradictions are found, and nothing is said of right files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from qa.field_mutants import CHANGES, findings, mutants
from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.bundle import write_bundle
from spyre.mlir.sdsc.codec import encode_sdsc
from spyre.mlir.sdsc.writer import write_operation
from tests.examples import examples
from tests.hw.movement_strategies import copy_specs, restickify_specs
from tests.hw.strategies import elementwise_specs, matmul_specs, reduction_specs

from .sample_bundles import SAMPLES

OURS = ("SPY252", "SPY263")
SPECS = st.one_of(
    elementwise_specs("add", 2), reduction_specs("sum"), matmul_specs(), copy_specs(),
    restickify_specs(),
)  # fmt: skip


def codes(content: bytes) -> set[str]:
    return {code for _, code, _ in findings(content)}


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_is_said_of_samples(name: str, tmp_path: Path) -> None:
    write_bundle(SAMPLES[name](), tmp_path)
    for file in tmp_path.glob("sdsc_*.json"):
        assert codes(file.read_bytes()).isdisjoint(OURS)


@examples(60)
@given(spec=SPECS)
def test_nothing_is_said_of_what_the_writer_writes(spec: OperationSpec) -> None:
    content = encode_sdsc(write_operation(build_operation(spec)))
    assert codes(content).isdisjoint(OURS)


@pytest.mark.shared
def test_nothing_is_said_of_real_files(shared_dir: Path) -> None:
    files = sorted(shared_dir.glob("bundles/*/**/sdsc_*.json"))
    assert len(files) > 100
    for file in files:
        assert codes(file.read_bytes()).isdisjoint(OURS), file


@pytest.mark.parametrize("name", ["lx", "matmul", "restickify"])
def test_mutants_of_samples_are_found(name: str, tmp_path: Path) -> None:
    write_bundle(SAMPLES[name](), tmp_path)
    found = {kind: code for kind, _, code in mutants(tmp_path, 150, 1)}
    assert all(found.values()), found
    assert len(found) > len(CHANGES) // 2


@pytest.mark.shared
def test_mutants_of_real_files_are_found(shared_dir: Path) -> None:
    missed = [(k, file) for k, file, code in mutants(shared_dir / "bundles", 200, 5) if not code]
    assert missed == []
