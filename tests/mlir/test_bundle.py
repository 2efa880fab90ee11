"""Bundle directories: loading, the checks between files, writing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from spyre.codes import diagnostic_codes
from spyre.errors import BundleError, Severity, ValidationError
from spyre.mlir.bundle import Bundle, load_bundle, write_bundle
from spyre.mlir.text.syntax import ExecuteOp, Function, Module
from tests.conftest import accepted_files

from .sample_bundles import SAMPLES


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good symbolic bundle, under a relative name so that messages are the same everywhere."""
    monkeypatch.chdir(tmp_path)
    return write_bundle(SAMPLES["symbolic_add"](), "bundle")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def messages(bundle: Bundle) -> list[str]:
    return [str(finding).splitlines()[0] for finding in bundle.check()]


def failure(path: str | Path) -> BundleError:
    with pytest.raises(BundleError) as error:
        load_bundle(path)
    return error.value


def test_loads_from_directory_and_from_file(directory: Path) -> None:
    bundle = load_bundle(directory)
    again = load_bundle(directory / "bundle.mlir")
    assert bundle.sdscs == again.sdscs
    assert bundle.module == again.module
    assert bundle.directory == again.directory == Path("bundle")
    assert [e.sdsc_filename for e in bundle.program.executes] == ["sdsc_0.json"]
    assert bundle.operations["sdsc_0.json"].name == "add"
    assert bundle.operation("sdsc_0.json") is bundle.operation("sdsc_0.json")
    assert bundle.check() == ()


def test_writing_is_the_inverse_of_loading(directory: Path, tmp_path: Path) -> None:
    bundle = load_bundle(directory)
    extra = {"launch_spec.json": b"{}"}
    copy = write_bundle(replace(bundle, extra_files=extra), tmp_path / "a" / "b")
    assert load_bundle(copy).sdscs == bundle.sdscs
    assert load_bundle(copy).module == bundle.module
    written = sorted(path.name for path in copy.iterdir())
    assert written == ["bundle.mlir", "launch_spec.json", "sdsc_0.json"]


def test_missing_directory() -> None:
    error = failure("nowhere")
    assert str(error) == (
        "error[SPY270]: nowhere does not exist\n"
        "  = expected: a directory, or the path of a bundle.mlir"
    )


def test_directory_without_module(directory: Path) -> None:
    (directory / "bundle.mlir").unlink()
    assert str(failure(directory)) == (
        "error[SPY271]: bundle holds no bundle.mlir\n  = expected: bundle.mlir\n"
        "  = found: sdsc_0.json"
    )


def test_missing_sdsc_is_located_at_the_execute(directory: Path) -> None:
    (directory / "sdsc_0.json").rename(directory / "sdsc_7.json")
    text = str(failure(directory))
    begin = "error[SPY272]: sdsc_0.json does not exist\n --> bundle/bundle.mlir:12:3\n12 | "
    assert text.startswith(begin)
    assert text.endswith("  = expected: a file in bundle\n  = found: sdsc_7.json")


@pytest.mark.parametrize("name", ["../sdsc_0.json", "/etc/passwd", "a/../../x.json", "..\\\\x"])
def test_names_that_leave_the_directory(directory: Path, name: str) -> None:
    edit(directory / "bundle.mlir", "sdsc_0.json", name)
    assert failure(directory).code == "SPY164"


def test_unreadable_files(directory: Path) -> None:
    (directory / "sdsc_0.json").unlink()
    (directory / "sdsc_0.json").mkdir()
    assert failure(directory).code == "SPY272"
    (directory / "bundle.mlir").write_bytes(b"module \xff")
    assert str(failure(directory)) == (
        "error[SPY274]: bundle/bundle.mlir is not UTF-8 text\n  = found: byte 7: invalid start byte"
    )


def test_unbound_symbol(directory: Path) -> None:
    edit(directory / "bundle.mlir", "-3, -4", "-3, -9")
    assert messages(load_bundle(directory)) == [
        "error[SPY275]: symbol -4 used by sdsc_0.json tensor Tensor1 core 1 is not bound",
        "warning[SPY276]: sdsc_0.json does not use 1 of the symbols bound",
    ]


def test_unused_symbols(directory: Path) -> None:
    for core in (0, 1):
        edit(
            directory / "sdsc_0.json", f'"[{core}, 0, 0]": "-{3 + core}"', f'"[{core}, 0, 0]": "-1"'
        )
    (warning,) = load_bundle(directory).check()
    assert warning.code == "SPY276"
    assert warning.found == "[-3, -4]"


def test_files_never_executed(directory: Path) -> None:
    (directory / "sdsc_12.json").write_text("not even read")
    assert messages(load_bundle(directory)) == ["warning[SPY277]: sdsc_12.json is never executed"]


def test_two_executes_with_different_symbols(directory: Path) -> None:
    """The rule is the module's; it shows through the bundle."""
    text = (directory / "bundle.mlir").read_text()
    line = next(line for line in text.splitlines() if "sdsc_execute" in line)
    edit(directory / "bundle.mlir", line, f"{line}\n{line.replace('-3, -4', '-3, -8')}")
    codes = {finding.code for finding in load_bundle(directory).check()}
    assert {"SPY165", "SPY275"} <= codes


def test_one_name_in_two_files(tmp_path: Path) -> None:
    (sdsc,) = SAMPLES["add"]().sdscs.values()
    body = tuple(ExecuteOp((), name) for name in ("sdsc_0.json", "sdsc_1.json"))
    module = Module(Function("f", (), body))
    parts = Bundle(tmp_path, module, {"sdsc_0.json": sdsc, "sdsc_1.json": sdsc})
    (warning,) = load_bundle(write_bundle(parts, tmp_path)).check()
    assert warning.code == "SPY279"
    assert warning.message == "SDSC 0_add is also the name of sdsc_0.json"


def test_check_can_raise_everything(directory: Path) -> None:
    edit(directory / "sdsc_0.json", '"wordLength": 2', '"wordLength": 4')
    bundle = load_bundle(directory)
    with pytest.raises(ValidationError) as error:
        bundle.check(raise_on_error=True)
    assert [f.code for f in error.value.findings] == ["SPY241"] * 3
    assert str(error.value).endswith("(and 2 more)")


def test_broken_module_shows_all_findings(directory: Path) -> None:
    """A bundle whose module does not lower can still be checked."""
    edit(directory / "bundle.mlir", "(%arg_0,", "(%arg_9,")
    bundle = load_bundle(directory)
    assert [f.code for f in bundle.check()] == ["SPY130"]
    with pytest.raises(ValidationError):
        _ = bundle.program


def test_failed_write_leaves_no_temporary_files(tmp_path: Path) -> None:
    parts = SAMPLES["add"]()
    (tmp_path / "sdsc_0.json").mkdir()
    with pytest.raises(OSError, match=r"sdsc_0\.json"):
        write_bundle(parts, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["sdsc_0.json"]


def test_codes_of_this_file_are_all_tested() -> None:
    text = Path(__file__).read_text()
    assert [c for c in diagnostic_codes() if "SPY270" <= c < "SPY280" and c not in text] == []


@pytest.mark.shared
def test_real_bundles_are_clean(shared_dir: Path) -> None:
    modules = accepted_files(shared_dir, "**/bundle.mlir")
    assert len(modules) >= 236
    for path in modules:
        bundle = load_bundle(path.parent)
        for finding in bundle.check():
            assert finding.severity is Severity.WARNING, str(finding)
        assert len(bundle.operations) == len(bundle.sdscs)
        assert not bundle.unexecuted


@pytest.mark.shared
def test_real_symbol_ids_are_the_operations(shared_dir: Path) -> None:
    """Bundle reference §3.1 rule 8: ids in order of first appearance."""
    case = shared_dir / "bundles" / "mm_64x70x64"
    bundle = load_bundle(case)
    for execute in bundle.module.executes():
        assert execute.symbol_ids == bundle.operations[execute.sdsc_filename].symbol_ids
    assert json.loads((case / "case.json").read_text())["address_mode"] == "symbolic"
