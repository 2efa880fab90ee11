"""Every pair of an option that writes a file with another option: the file exists, or an error.

Also single options with nonsensical values: they end in an answer, never a traceback.
"""

from __future__ import annotations

import json
import shutil

import pytest

from spyre.cli import options as options_module
from spyre.cli.options import COMMANDS, option_names, parse_command
from spyre.mlir.bundle import write_bundle
from tests.mlir.sample_bundles import add_on_two_cores

FILES = {
    "save_output": ("--save-output", "o.npy"),
    "save_tensors": ("--break", "0", "--save-tensors", "t.npz"),
    "svg": ("--explain", "--svg", "drawn"),
    "dump": ("--dump", "dumped"),
    "trace": ("--trace", "trace.json"),
    "report": ("--report", "r.html"),
    "roofline": ("--roofline", "r.svg"),
    "modelled_trace": ("--modelled-trace", "m.json"),
}
"""Options that write a file, the last word, with those they need."""
VALUES = {
    "inputs": ("-i", "32x128@fp16", "32x128@fp16"),
    "shapes": ("--shape", "32x128@fp16", "--shape", "32x128@fp16"),
    "strides": ("--strides", "0=128,1"),
    "aliases": ("--alias", "2=0"),
    "values": ("--value", "nothing=1"),
    "function": ("--function", "none"),
    "seed": ("--seed", "1"),
    "expected": ("-o", "none.npy"),
    "rtol": ("--rtol", "1"),
    "atol": ("--atol", "1"),
    "exact": ("--exact",),
    "numerics": ("--numerics", "ieee"),
    "threads": ("--threads", "1"),
    "sanitize": ("--sanitize",),
    "poison": ("--poison",),
    "core_order": ("--core-order", "random"),
    "against": ("--against", "ieee"),
    "verify": ("--verify",),
    "verify_points": ("--verify", "--verify-points", "9"),
    "expect": ("--expect", "torch:f.py:f"),
    "break_at": ("--break", "0"),
    "tensors": ("--break", "0", "--print", "Tensor0"),
    "warm": ("--warm",),
    "clear_cache": ("--clear-cache",),
    "check": ("--check",),
    "explain": ("--explain",),
    "json": ("--json",),
    "quiet": ("-q",),
    "verbose": ("-v",),
    "commands": ("--commands",),
    "profile": ("--profile",),
    "compare": ("--compare", "a", "b"),
    "cost_model": ("--cost-model", "ideal"),
    "machine": ("--machine", "none.toml"),
    "overlap": ("--overlap", "serial"),
}
"""The other options, each with a value."""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A bundle ``b`` in the working directory, without launch_spec.json."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "cache"))
    write_bundle(add_on_two_cores(symbolic=True), tmp_path / "b")
    return tmp_path


def test_every_option_is_in_one_of_the_tables():
    offered = {name for group in options_module._SPYRE_RUN.values() for name in group}
    assert offered == {*FILES, *VALUES}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_uses_all_options_that_it_offers(name):
    _, kind, _, groups, _ = COMMANDS[name]
    offered = {option for group in groups.values() for option in group}
    assert offered <= set(option_names(kind))


@pytest.mark.parametrize("option", FILES)
def test_a_file_is_written_or_refused(cli, small, monkeypatch, option):
    monkeypatch.delenv("SPYRE_CACHE_DIR")
    others = {**VALUES, **{name: words for name, words in FILES.items() if name != option}}
    file, ran_well = small / FILES[option][-1], 0
    for other, words in others.items():
        for place in small.iterdir():
            if place.name not in ("b", "cache"):
                shutil.rmtree(place) if place.is_dir() else place.unlink()
        path = () if other in ("clear_cache", "compare") else ("b",)
        ran = cli(*path, *FILES[option], *words)
        assert ran.code in (0, 1, 2), (other, ran)
        assert "Traceback" not in ran.err, (other, ran)
        if ran.code < 2:
            ran_well += 1
            assert file.exists(), (other, ran)
    assert ran_well > (8 if option != "svg" else 2)


def test_a_breakpoint_in_json(cli, small):
    ran = cli("b", "--break", "0", "--print", "Tensor0", "--save-tensors", "t.npz", "--json")
    (tensor,) = json.loads(ran.out)["tensors"].values()
    assert len(tensor["values"]) > 1
    assert (small / "t.npz").exists()
    assert json.loads(cli("b", "--json").out)["tensors"] is None


def test_warming_in_json(cli, small, monkeypatch):
    monkeypatch.delenv("SPYRE_CACHE_DIR")
    printed = json.loads(cli("b", "--warm", "--json").out)
    assert (printed["ok"], printed["exit_code"]) == (True, 0)
    assert printed["kernels"]["b"] > 0


def test_warm_takes_no_output(small, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse_command("warm", ["b", "--save-output", "o.npy"])
    assert "unrecognized arguments: --save-output" in capsys.readouterr().err


def test_json_is_no_other_form(small, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse_command("check", ["b", "--json", "--format", "sarif"])
    assert "--format does not go together with --json" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--shape", "3x3@fp16"], ["-i", "bad.npy", "bad.npy"]])
def test_a_refused_run_leaves_no_trace(cli, examples, small, words):
    import numpy as np

    np.save("bad.npy", np.zeros((3, 3), np.float16))
    ran = cli(examples / "softmax", *words, "--trace", "t.json")
    assert ran.code == 2
    assert not (small / "t.json").exists()


# --- values -----------------------------------------------------------------------------------

ODD = (
    "",
    "-1",
    "²",
    "1" * 5000,
    "9" * 30,
    "nan",
    "0=" + "1" * 5000,
    "torch:b/bundle.mlir:f",
    "random:" + "1" * 5000,
    "1" * 5000 + "x2@fp16",
    "a\0b",
    "b\0.npy",
    "../" * 2000,
)


def with_value():
    """Options of ``spyre-run`` that take a value, by name."""
    rows = options_module._ROWS
    offered = {name for group in options_module._SPYRE_RUN.values() for name in group}
    takes = [n for n in sorted(offered) if "metavar" in rows[n][1] or "type" in rows[n][1]]
    return [*takes, "rtol", "atol"] if "rtol" not in takes else takes


NEEDS = {
    "verify_points": ["--verify"],
    "tensors": ["--break", "0"],
    "save_tensors": ["--break", "0"],
}
NEEDS |= {"svg": ["--explain"], "machine": ["--profile"]}


@pytest.mark.parametrize("option", with_value())
def test_odd_values_are_answered(cli, small, monkeypatch, option):
    monkeypatch.delenv("SPYRE_CACHE_DIR")
    flag = options_module._flag(option)
    for value in ODD:
        words = [f"{flag}={value}"] if option != "compare" else [flag, value, value]
        path = [] if option == "compare" else ["b"]
        if option == "svg" and value in ("", "../" * 2000):
            continue  # a directory that exists
        ran = cli(*path, *NEEDS.get(option, []), *words)
        assert ran.code in (0, 1, 2), (value[:40], ran)
        assert "Traceback" not in ran.err, (value[:40], ran)


@pytest.mark.parametrize("variable", ["SPYRE_NUM_THREADS", "SPYRE_VECTOR_WIDTH", "SPYRE_NUMERICS"])
def test_odd_values_of_variables_are_answered(cli, small, monkeypatch, variable):
    for value in ODD:
        if "\0" in value:
            continue
        monkeypatch.setenv(variable, value)
        ran = cli("b", "--check")
        assert ran.code == 0, (value[:40], ran)


@pytest.mark.parametrize("text", ["name = 1", 'name = "x"\n[chip]\ny = ' + "1" * 5000])
def test_odd_machine_files(cli, small, text):
    (small / "m.toml").write_text(text)
    ran = cli("b", "--profile", "--machine", "m.toml")
    assert ran.code == 2
    assert "error[SPY76" in ran.err
