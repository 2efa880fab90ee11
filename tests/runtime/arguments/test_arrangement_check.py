"""`spyre-run --check`: operands traced to tagged arguments, in both address modes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from spyre.cli.diagnose import diagnose
from spyre.cli.options import DiagnoseOptions
from spyre.errors import Severity
from spyre.layout import SpyreTensorLayout
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import write_bundle
from spyre.runtime.program.launch_spec import (
    LAUNCH_SPEC_FILE,
    ArgumentEntry,
    LaunchSpec,
    Role,
)
from tests.runtime.launch_specs import write_launch_spec

SHAPE = (32, 128)
NBYTES = 32 * 128 * 4
OP = '"opFuncName": "neg"'
STAGGERED = "DL16_TO_FP32"


def wide(place: object) -> HostOperand:
    return HostOperand(place, data_format="IEEE_FP32")  # type: ignore[arg-type]


def widened_sum(directory: Path, symbolic: bool, tags: tuple[str, str, str]) -> Path:
    """float32(x) + b: the widened x in the pool, arguments x (float16), b and y (float32)."""
    builder = BundleBuilder(symbolic=symbolic)
    x, b, y = builder.argument(NBYTES // 2), builder.argument(NBYTES), builder.argument(NBYTES)
    middle = builder.temporary(NBYTES)
    splits = {"mb": 4}
    builder.add(pointwise("dl16tofp32", SHAPE, [HostOperand(x.at())], wide(middle.at()), splits))
    builder.add(pointwise("add", SHAPE, [wide(middle.at()), wide(b.at())], wide(y.at()), splits))
    builder.add(pointwise("neg", SHAPE, [wide(b.at())], wide(y.at()), splits))
    write_bundle(builder.build(), directory)
    roles = (Role.INPUT, Role.INPUT, Role.OUTPUT)
    arguments = tuple(
        ArgumentEntry(k, role, SHAPE, dtype, layout_of(dtype, tag))
        for k, (role, dtype, tag) in enumerate(
            zip(roles, ("float16", "float32", "float32"), tags, strict=True)
        )
    )
    spec = LaunchSpec(1, "k", arguments, pool_size=builder.pool_bytes)
    write_launch_spec(directory / LAUNCH_SPEC_FILE, spec)
    return directory


def layout_of(dtype: str, tag: str) -> SpyreTensorLayout:
    layout = SpyreTensorLayout.from_host(SHAPE, dtype)
    return replace(layout, element_arrangement=tag)


def findings(directory: Path) -> list[tuple[str, str]]:
    diagnosis = diagnose(DiagnoseOptions(str(directory), check=True))
    assert diagnosis.exit_code == 0
    assert {f.severity for f in diagnosis.findings} <= {Severity.WARNING}
    return [(f.code, f.message) for f in diagnosis.findings]


@pytest.mark.parametrize("symbolic", [True, False], ids=["symbolic", "baked"])
def test_arguments_of_one_arrangement(tmp_path: Path, symbolic: bool):
    assert findings(widened_sum(tmp_path / "a", symbolic, ("STANDARD",) * 3)) == []
    tags = ("STANDARD", STAGGERED, STAGGERED)
    assert findings(widened_sum(tmp_path / "b", symbolic, tags)) == []


@pytest.mark.parametrize("symbolic", [True, False], ids=["symbolic", "baked"])
def test_a_result_tagged_otherwise(tmp_path: Path, symbolic: bool):
    """The sum is not reported, because its first operand has no known arrangement."""
    tags = ("STANDARD", STAGGERED, "STANDARD")
    message = "neg: the result is tagged STANDARD, its elements are in another order"
    assert findings(widened_sum(tmp_path, symbolic, tags)) == [("SPY296", message)]


def test_check_reports_the_rules_on_operations(tmp_path: Path):
    """Errors of the op rules stop the program, features that are not simulated do not."""
    directory = widened_sum(tmp_path, True, ("STANDARD",) * 3)
    file = directory / "sdsc_2.json"
    original = file.read_text()
    assert OP in original
    file.write_text(original.replace(OP, OP.replace("neg", "keepbyindex")))
    assert [code for code, _ in findings(directory)] == ["SPY555"]
    file.write_text(original.replace(OP, OP.replace("neg", "mul")))
    diagnosis = diagnose(DiagnoseOptions(str(directory), check=True))
    assert [f.code for f in diagnosis.findings] == ["SPY280"]
    assert diagnosis.exit_code != 0
    assert diagnosis.findings[0].message == "mul: wrong number of tensors"
