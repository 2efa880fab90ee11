"""``spyre``: one command with the forms of ``spyre-run``, and a few additional ones."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spyre import __main__ as command
from spyre.cli import doctor
from spyre.cli.diagnose import Diagnosis, diagnose, github_line, gitlab_object, sarif_object
from spyre.cli.options import DiagnoseOptions
from spyre.cli.run import main as spyre_run
from spyre.codes import diagnostic_codes
from spyre.errors import DeviceLocation, Finding, JsonLocation, Severity, SourceLocation

EXAMPLES = Path(__file__).parents[2] / "examples"
SOFTMAX = str(EXAMPLES / "softmax")


def printed(capsys, function, *words):
    """Exit code and standard output of a command line."""
    code = function(list(words))
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["check", SOFTMAX], [SOFTMAX, "--check"]),
        (["explain", SOFTMAX, "--json"], [SOFTMAX, "--explain", "--json"]),
        (["compare", SOFTMAX, SOFTMAX], ["--compare", SOFTMAX, SOFTMAX]),
        (["run", SOFTMAX, "-q"], [SOFTMAX, "-q"]),
        (["profile", SOFTMAX, "-q"], [SOFTMAX, "--profile", "-q"]),
        (["warm", SOFTMAX], [SOFTMAX, "--warm"]),
    ],
)
def test_forms_print_what_options_do(capsys, words, same):
    assert printed(capsys, command.main, *words) == printed(capsys, spyre_run, *same)


def test_help_names_every_command_and_loads_nothing():
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "spyre", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(f"\n  {name} " in shown.stdout for name in command.COMMANDS)
    assert not any(f"| {name}\n" in shown.stderr for name in ("torch", "numba", "numpy", "rich"))
    assert max(map(len, shown.stdout.splitlines())) <= 80


@pytest.mark.parametrize("name", command.COMMANDS)
def test_every_command_has_help_under_its_name(capsys, name):
    with pytest.raises(SystemExit) as left:
        command.main([name, "--help"]) and pytest.fail("help is an end")
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: spyre {name} ")


def test_an_unknown_command_gets_a_guess(capsys):
    assert command.main(["chekc"]) == 2
    assert "spyre: no command 'chekc'; did you mean check?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "meant"), [("--sanitise", "--sanitize"), ("--profil", "--profile")]
)
def test_an_unknown_or_shortened_option_gets_a_guess(capsys, option, meant):
    with pytest.raises(SystemExit) as left:
        command.main(["run", SOFTMAX, option])
    assert left.value.code == 2
    assert f"{option}; did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["SPY702", "spy7o2"])
def test_a_code_is_explained(capsys, word):
    code, text = printed(capsys, command.main, "explain", word)
    row = diagnostic_codes()["SPY702"]
    assert code == 0
    assert text.startswith(f"SPY702: {row.title}\n")
    assert f"To do: {row.fix} For example: warning[SPY702]: " in " ".join(text.split())
    _, as_object = printed(capsys, command.main, "explain", word, "--json")
    assert json.loads(as_object)["cause"] == row.cause


def test_the_example_of_a_code_fits_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, text = printed(capsys, command.main, "explain", "SPY704")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert plain != text
    assert max(map(len, plain.splitlines())) <= 80


def test_a_code_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit) as left:
        command.main(["explain", "SPY000"])
    assert left.value.code == 2
    assert "there is no code SPY000" in capsys.readouterr().err


def test_compile_takes_a_plain_directory(tmp_path, capsys):
    bundle = shutil.copytree(SOFTMAX, tmp_path / "softmax")
    code, text = printed(capsys, command.main, "compile", str(bundle))
    assert code == 0
    assert "bytes of program memory" in text
    assert (bundle / "spyreCodeDir" / "spyrecode.json").is_file()


def test_the_cache_is_shown_and_cleared(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    for name in ("kernels-1", "plans", "grammar"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(500_000))
    (tmp_path / "notes").mkdir()
    _, text = printed(capsys, command.main, "cache")
    assert text.splitlines()[0] == str(tmp_path)
    assert [line.split()[-2] for line in text.splitlines()[1:]] == ["0.5", "0.5", "0.5", "0.0"]
    assert printed(capsys, command.main, "cache", "path") == (0, f"{tmp_path}\n")
    assert "1.5 MB removed" in printed(capsys, command.main, "cache", "clear")[1]
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_shapes_in_the_place_of_inputs(capsys):
    shaped = ["-i", "128x256@fp16", "--json"]
    given, made = (json.loads(printed(capsys, command.main, "run", SOFTMAX, *words)[1])
                   for words in (shaped, ["--json"]))  # fmt: skip
    assert given["outputs"] == made["outputs"]
    assert command.main(["run", SOFTMAX, "-i", "64x256@fp16"]) == 2
    assert "SPY" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["run", SOFTMAX, "-i", "128x256@fp16", f"{SOFTMAX}/input.npy"])


def test_the_doctor_finds_nothing_wrong_here(capsys):
    code, text = printed(capsys, command.main, "doctor", "--json")
    report = json.loads(text)
    assert (code, report["ok"]) == (0, True)
    outcomes = {check["name"]: check["outcome"] for check in report["checks"]}
    assert outcomes["versions"] == outcomes["run"] == "ok"


def test_the_doctor_names_what_fails_and_looks_further(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: "2.12.0")
    monkeypatch.setattr(doctor, "_run", lambda: 1 // 0)
    code, text = printed(capsys, command.main, "doctor")
    assert code == 2
    rows = [line.split(maxsplit=2) for line in text.splitlines() if not line.startswith(" ")]
    assert [row[:2] for row in rows if row[0] == "failed"] == [
        ["failed", "run"],
        ["failed", "torch"],
    ]
    assert "the PyTorch device needs torch 2.13.0" in text


def test_the_doctor_says_what_a_server_lacks(capsys, monkeypatch):
    versions = {"vllm": "0.27.1+empty", "torch-spyre": "0.0.1", "transformers": "5.24.0"}

    def found(name):
        if name in doctor.SERVING and name not in versions:
            raise PackageNotFoundError(name)
        return versions.get(name) or version(name)

    monkeypatch.setattr(doctor, "version", found)
    monkeypatch.setenv("SPYRE_FRONTEND", "spyre")
    code, text = printed(capsys, command.main, "doctor", "--serving", "--json")
    outcomes = {check["name"]: check["outcome"] for check in json.loads(text)["checks"]}
    assert code == 2
    assert {name: outcomes[name] for name in (*doctor.SERVING, "programs")} == {
        "vllm": "ok",
        "spyre-inference": "failed",
        "torch-spyre": "ok",
        "hf-adapters-spyre": "failed",
        "transformers": "note",
        "programs": "failed",
    }
    assert "export SPYRE_FRONTEND=torch-spyre" in text


# --- findings for other tools -------------------------------------------------------------------


@pytest.fixture
def wrong(tmp_path):
    """A bundle with a name that is not defined."""
    directory = shutil.copytree(EXAMPLES / "add_loop", tmp_path / "wrong & odd")
    text = (directory / "bundle.mlir").read_text()
    (directory / "bundle.mlir").write_text(text.replace("(%i_0)[%arg_0]", "(%i_0)[%arg_9]"))
    return directory


def test_findings_as_sarif(wrong, capsys):
    code, text = printed(capsys, command.main, "check", str(wrong), "--format", "sarif")
    (run,) = json.loads(text)["runs"]
    result = run["results"][0]
    assert code == 2
    assert (result["ruleId"], result["level"]) == ("SPY130", "error")
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "SPY130"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == (wrong / "bundle.mlir").as_uri()
    assert place["region"]["startLine"] == 29


SOURCE = SourceLocation("a b/bundle.mlir", 3, 5)
FINDINGS = [
    Finding("SPY702", Severity.WARNING, "m", None),
    Finding("SPY702", Severity.ERROR, "m", JsonLocation("sdsc_0.json", "$.x"), "1", "2", "do"),
    Finding("SPY704", Severity.ERROR, "m", DeviceLocation("sdsc_0.json", 2, core=7, source=SOURCE)),
    Finding("SPY101", Severity.ERROR, "m", SourceLocation("/abs/bundle.mlir", 1, 1, "text")),
]
"""A finding of each kind of place."""


def test_sarif_links_to_the_page_of_a_code(monkeypatch):
    def addresses():
        (run,) = sarif_object(FINDINGS[:1])["runs"]
        return [rule.get("helpUri") for rule in run["tool"]["driver"]["rules"]]

    assert addresses() == [None]
    monkeypatch.setenv("SPYRE_DOCS_URL", "https://docs.example/spyre/")
    assert addresses() == ["https://docs.example/spyre/errors/SPY702.html"]


def test_sarif_follows_its_schema(wrong, monkeypatch):
    """The model is generated from the published schema, without its conditions on values."""
    model = pytest.importorskip("pydantic_sarif.model")
    log = model.StaticAnalysisResultsFormatSarifVersion210JsonSchema
    found = diagnose(DiagnoseOptions(str(wrong), check=True)).findings
    assert found
    monkeypatch.setenv("SPYRE_DOCS_URL", "https://docs.example/spyre")
    for findings in ((), found, FINDINGS):
        text = json.dumps(sarif_object(findings))
        assert len(log.model_validate_json(text).runs[0].results) == len(findings)
        with pytest.raises(ValueError, match="tool"):
            log.model_validate_json(text.replace('"tool"', '"tol"'))


def test_every_kind_of_place_is_one_of_sarif():
    results = sarif_object(FINDINGS)["runs"][0]["results"]
    nowhere, in_json, on_device, _ = (each["locations"] for each in results)
    assert nowhere == []
    assert in_json[0]["logicalLocations"] == [{"fullyQualifiedName": "$.x"}]
    assert on_device[0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20b/bundle.mlir"
    assert on_device[0]["physicalLocation"]["region"] == {"startLine": 3, "startColumn": 5}
    assert "core 7" in on_device[0]["logicalLocations"][0]["fullyQualifiedName"]


def test_findings_as_junit(wrong, capsys):
    code, text = printed(capsys, command.main, "check", str(wrong), "--format", "junit")
    (suite,) = ElementTree.fromstring(text)
    assert code == 2
    assert suite.get("name") == str(wrong)
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) >= 1
    assert "bundle.mlir:29" in suite.find("testcase/failure").text
    _, text = printed(capsys, command.main, "check", SOFTMAX, "--format", "junit")
    (suite,) = ElementTree.fromstring(text)
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")


@pytest.fixture
def warned(tmp_path):
    """A bundle whose sizes are derived, since it has no launch_spec.json: a warning, SPY364."""
    directory = shutil.copytree(SOFTMAX, tmp_path / "softmax")
    (directory / "launch_spec.json").unlink()
    return directory


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("", 0),
        ("--fail-on warning", 1),
        ("--fail-on warning --select SPY364", 1),
        ("--fail-on warning --select SPY7", 0),
        ("--fail-on warning --ignore spy36,SPY7", 0),
    ],
)
def test_warnings_are_chosen(warned, capsys, words, code):
    assert printed(capsys, command.main, "check", str(warned), *words.split())[0] == code


def test_known_findings_are_left_out(warned, wrong, capsys, tmp_path):
    _, text = printed(capsys, command.main, "check", str(warned), "--json")
    known = tmp_path / "known.json"
    known.write_text(text)
    options = ("--fail-on", "warning", "--baseline", str(known))
    code, text = printed(capsys, command.main, "check", str(warned), *options)
    assert (code, text) == (0, f"{warned}: nothing found\n")
    assert printed(capsys, command.main, "check", str(wrong), *options)[0] == 2, "errors stay"
    for content in ("{", '{"findings": [1]}', "{}"):
        known.write_text(content)
        assert printed(capsys, command.main, "check", str(warned), *options)[0] == 2


def test_a_code_that_no_finding_has_is_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(["check", SOFTMAX, "--ignore", "SPY9999"])
    assert caught.value.code == 2
    assert "no code begins with 'SPY9999'" in capsys.readouterr().err


def test_failures_of_junit_are_those_of_the_exit_code(warned, capsys):
    words = ("check", str(warned), "--format", "junit", "--fail-on", "warning")
    code, text = printed(capsys, command.main, *words)
    (suite,) = ElementTree.fromstring(text)
    assert (code, suite.get("failures")) == (1, "1")


def test_findings_as_annotations(wrong, capsys):
    code, text = printed(capsys, command.main, "check", str(wrong), "--format", "github")
    line = text.splitlines()[0]
    assert code == 2
    assert line.startswith(f"::error file={wrong}/bundle.mlir,line=29,col=")
    assert ",title=SPY130::" in line
    place = JsonLocation("a,b:c%.json", "$.x")
    assert github_line(Finding("SPY702", Severity.WARNING, "50 %\nx", place)) == (
        "::warning file=a%2Cb%3Ac%25.json,title=SPY702::50 %25%0Ax"
    )


def test_findings_as_code_quality(wrong, capsys):
    code, text = printed(capsys, command.main, "check", str(wrong), "--format", "gitlab")
    (issue,) = (each for each in json.loads(text) if each["check_name"] == "SPY130")
    assert code == 2
    assert issue["severity"] == "critical"
    assert issue["location"] == {"path": f"{wrong}/bundle.mlir", "lines": {"begin": 29}}
    assert "is not defined" in issue["description"]
    places = (None, JsonLocation("a/sdsc_0.json", "$.x"), DeviceLocation("a/sdsc_0.json", 2))
    findings = tuple(Finding("SPY702", Severity.WARNING, "m", place) for place in places)
    issues = gitlab_object(Diagnosis("./a", findings))
    assert [each["location"]["path"] for each in issues] == ["a", "a/sdsc_0.json", "a/sdsc_0.json"]
    assert {each["location"]["lines"]["begin"] for each in issues} == {1}
    assert len({each["fingerprint"] for each in issues}) == 3
    assert gitlab_object(Diagnosis("./a", findings)) == issues
    assert printed(capsys, command.main, "check", SOFTMAX, "--format", "gitlab") == (0, "[]\n")


def test_findings_are_coloured_for_people_only(wrong, capsys, monkeypatch):
    command.main(["run", str(wrong)])
    assert "\033[" not in capsys.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")
    command.main(["run", str(wrong)])
    coloured = capsys.readouterr().err
    assert "\033[1;31merror[SPY130]\033[0m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    command.main(["run", str(wrong)])
    assert "\033[1;31m" not in capsys.readouterr().err
