"""Definitions of sweeps: TOML, command line, points in order, errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spyre.errors import SweepError
from spyre.sweep import __main__ as entry
from spyre.sweep.__main__ import document_of, parse_options
from spyre.sweep.definition import make_definition, read_document, read_function_target, read_tiles
from tests.test_imports import HEAVY, loaded_after

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def definition(document, base=EXAMPLES):
    return make_definition(document, "sweep.toml", base)


def test_every_combination_is_a_point_and_bundles_have_one_per_machine():
    found = definition(
        {
            "bundles": ["softmax"],
            "functions": ["os.path:join rows=64x64 64"],
            "compile": {"cores": [8, 32], "tiles": ["none", "rows=4"]},
            "machine": {"hardware": {"hbm_peak_gbps": [100, 200]}, "calibration.run_ns": 5},
        }
    )
    tasks = list(found.tasks())
    assert [len(task.machines) for task in tasks] == [2] * 5
    assert tasks[0].settings == ()
    assert [dict(t.settings)["cores"] for t in tasks[1:]] == [8, 8, 32, 32]
    keys = [key for task in tasks for key in task.point_keys]
    assert len(set(keys)) == 10
    assert found.columns[-3:] == ("hardware.hbm_peak_gbps", "calibration.run_ns", "model")


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({}, "SPY740"),
        ({"bundles": "softmax"}, "SPY740"),
        ({"bundles": ["softmax"], "nonsense": 1}, "SPY740"),
        ({"bundles": ["softmax"], "model": "best"}, "SPY740"),
        ({"bundles": ["softmax"], "host_rounds": -1}, "SPY740"),
        ({"bundles": ["softmax"], "compile": {"cores": ["many"]}}, "SPY740"),
        ({"bundles": ["softmax"], "compile": {"cores": []}}, "SPY740"),
        ({"bundles": ["softmax"], "compile": {"nonsense": [1]}}, "SPY740"),
        ({"bundles": ["softmax"], "compile": {"tiles": ["rows"]}}, "SPY740"),
        ({"bundles": ["softmax"], "machine": {"hardware.cores": [True]}}, "SPY740"),
        ({"bundles": ["nowhere"]}, "SPY744"),
        ({"functions": ["os.path"]}, "SPY744"),
        ({"functions": ["os.path:join"]}, "SPY744"),
        ({"functions": ["os.path:join 64xrows"]}, "SPY744"),
        ({"functions": ["nowhere.py:f 64"]}, "SPY744"),
    ],
)
def test_what_cannot_be_is_refused(document, code):
    with pytest.raises(SweepError) as caught:
        definition(document)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("document", "path", "expected", "found"),
    [
        ({"bundles": "softmax"}, "$.bundles", "array", "softmax"),
        ({"bundles": ["softmax", 1]}, "$.bundles[1]", "str", "1"),
        ({"nonsense": 1}, "$.nonsense", "one of bundles, functions, compile", "nonsense"),
        ({"a\nb": 1}, "$.a\nb", "one of bundles", "a\nb"),
        ({"model": "be\nst"}, "$.model", "calibrated or ideal", "be\nst"),
        ({"model": "best"}, "$.model", "calibrated or ideal", "best"),
        ({"host_rounds": -1}, "$.host_rounds", "int >= 0", "-1"),
        ({"compile": {"cores": [8, "x"]}}, "$.compile.cores[1]", "int", "x"),
        ({"compile": {"nonsense": 1}}, "$.compile.nonsense", "one of cores, lx_kept", "nonsense"),
        ({"machine": {"a": {"b": "c"}}}, "$.machine.a.b[0]", "int | float", "c"),
        ({"machine": {"a.b": []}}, "$.machine.a.b", "array of length >= 1", "[]"),
        ({"machine": 1}, "$.machine", "object", "1"),
    ],
)
def test_errors_name_the_field(document, path, expected, found):
    with pytest.raises(SweepError, match="SPY740") as caught:
        definition({"bundles": ["softmax"], **document})
    finding = caught.value.finding
    assert str(finding.location) == f"sweep.toml at {path}"
    assert finding.expected.startswith(expected)
    assert finding.found == found


def test_function_targets():
    found = read_function_target("os.path:join rows=64x2 8:int32", EXAMPLES)
    assert (found.path, found.function) == ("os.path", "join")
    assert list(found.tensors) == [
        ((64, 2), ("rows", ""), "float16"),
        ((8,), ("",), "int32"),
    ]


def test_tiles():
    assert read_tiles("none") == read_tiles("auto") == {}
    assert read_tiles("rows=4,heads=2") == {"rows": 4, "heads": 2}
    for text in ("rows=0", "rows=4,rows=2", "=2", "rows=x"):
        with pytest.raises(SweepError):
            read_tiles(text)


def test_the_command_line_replaces_what_the_file_says():
    base = read_document(EXAMPLES / "sweep" / "sweep.toml")
    given = parse_options(
        ["s.toml", "--cores", "4", "--set", "hardware.hbm_peak_gbps", "100", "204.8"]
    )
    document = document_of(given, base)
    assert document["compile"] == {**base["compile"], "cores": [4]}
    assert document["machine"]["hardware.hbm_peak_gbps"] == [100, 204.8]
    assert document["functions"] == base["functions"]


def test_paths_of_options_are_relative_to_here(tmp_path, monkeypatch):
    """Also beside a file, whose own paths are relative to it."""
    (tmp_path / "m.py").touch()
    monkeypatch.chdir(tmp_path)
    given = parse_options(
        [str(EXAMPLES / "sweep" / "sweep.toml"), "--function", "m.py:f 64", "os.path:join 64"]
    )
    found = entry._definition(given).targets
    assert [one.path if one.function else one.text for one in found] == [
        "../softmax", str(tmp_path / "m.py"), "os.path",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["s.toml", "--jobs", "0"],
        ["s.toml", "--anew", "--resume"],
        ["s.toml", "--out", "s.xlsx"],
        ["s.toml", "--set", "hardware.cores", "many"],
    ],
)
def test_wrong_command_lines(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        parse_options(arguments)
    assert caught.value.code == 2
    assert "spyre.sweep" in capsys.readouterr().err


def test_a_document_that_is_no_toml(tmp_path):
    (tmp_path / "s.toml").write_text("bundles = [")
    for name in ("s.toml", "nowhere.toml"):
        with pytest.raises(SweepError, match="SPY740"):
            read_document(tmp_path / name)


def test_help_is_light():
    assert loaded_after(
        "try:\n    from spyre.sweep.__main__ import main; main(['--help'])\n"
        "except SystemExit:\n    pass"
    ).isdisjoint(HEAVY)
    shown = subprocess.run(
        [sys.executable, "-m", "spyre.sweep", "--help"], capture_output=True, text=True, cwd=ROOT
    )
    assert shown.returncode == 0
    assert "--scheduler" in shown.stdout
