"""``spyre diff``: the executes, divisions, memories and steps that differ between two programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from spyre.__main__ import main

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES / "softmax", tmp_path / "copied"))


def exchange(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_equal_programs(copied: Path, capfd: pytest.CaptureFixture[str]):
    assert main(["diff", str(EXAMPLES / "softmax"), str(copied)]) == 0
    assert capfd.readouterr().out == "the programs are equal\n"


def test_steps_of_tiles(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    other = Path(shutil.copytree(EXAMPLES / "add_loop", tmp_path / "other"))
    exchange(other / "bundle.mlir", "8192*d0", "4096*d0")
    assert main(["diff", str(EXAMPLES / "add_loop"), str(other)]) == 1
    shown = capfd.readouterr().out.splitlines()
    assert shown[:4] == [
        "execute 0 add",
        "  Tensor0:",
        "    A  arg_0, SEN169_FP16 mb x out, from byte 0, steps of 8,192 bytes",
        "    B  arg_0, SEN169_FP16 mb x out, from byte 0, steps of 4,096 bytes",
    ]
    assert shown[-3].startswith("  modelled time: ")
    assert shown[-3].endswith(" µs in both")
    assert shown[-1] == "1 execute differs"


def test_modelled_times(capfd: pytest.CaptureFixture[str]):
    programs = [str(EXAMPLES / name) for name in ("softmax", "add_loop")]
    assert main(["diff", *programs]) == 1
    shown = capfd.readouterr().out
    assert "modelled time without launching: 2.26 µs in A, 9.59 µs in B (+3" in shown
    assert main(["diff", *programs, "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    a_ns = sum(each["modelled_ns"]["a"] or 0.0 for each in found["differences"])
    assert a_ns == pytest.approx(found["modelled_ns"]["a"])


def test_a_program_without_a_place_on_the_card(copied: Path, capfd: pytest.CaptureFixture[str]):
    exchange(copied / "sdsc_3.json", '"sum"', '"unknown"')
    assert main(["diff", str(EXAMPLES / "softmax"), str(copied)]) == 1
    shown = capfd.readouterr().out
    assert "unknown" in shown
    assert "modelled" not in shown


def test_operations_and_what_is_left_out(copied: Path, capfd: pytest.CaptureFixture[str]):
    exchange(copied / "sdsc_3.json", '"sum"', '"max"')
    lines = (copied / "bundle.mlir").read_text().splitlines(keepends=True)
    kept = [line for line in lines if "sdsc_1.json" not in line]
    (copied / "bundle.mlir").write_text("".join(kept))
    assert main(["diff", str(EXAMPLES / "softmax"), str(copied), "--json"]) == 1
    found = json.loads(capfd.readouterr().out)["differences"]
    assert [(each["a"], each["b"], each["operation"]) for each in found] == [
        (1, None, "sub"),
        (3, 2, "sum"),
    ]
    assert found[1]["fields"] == {"operation": {"a": "sum", "b": "max"}}


def test_a_program_that_is_not_there(copied: Path, capfd: pytest.CaptureFixture[str]):
    assert main(["diff", str(copied), str(copied / "no")]) == 2
    assert "SPY270" in capfd.readouterr().err
