"""Names that hold commands to terminals, in every output: they are shown, not obeyed."""

from __future__ import annotations

import json
import re
import shutil
import sys
from xml.etree import ElementTree

import pytest

from spyre.cli.entry import guarded, terminal_of
from spyre.errors import Finding, JsonLocation, LaunchError, Severity, SourceLocation, printable

CONTROLS = (
    "\x1b]8;;evil:x\x1b\\",  # a link
    "\x1b[2J",  # clears the screen
    "\x9b31m",  # the same introducer in one character
    "\x07\x08\r\x7f",
    "\u202e\u2066\u200f",  # the text after it runs backwards
    "\u2028",
)
DANGEROUS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
EVIL = "".join(CONTROLS)


@pytest.mark.parametrize("text", CONTROLS)
def test_control_characters_are_shown(text):
    assert not DANGEROUS.search(printable(text))
    assert printable(printable(text)) == printable(text)


def test_other_text_stays():
    text = "tab\tline\né 漢 × 🙂 \\x1b"
    assert printable(text) == text
    assert printable("\x1b") == "\\x1b"
    assert printable("\u202e") == "\\u202e"


def test_findings_are_one_line_per_part():
    finding = Finding(
        "SPY110",
        Severity.ERROR,
        f"a{EVIL}\nerror[SPY999]: forged",
        SourceLocation("f\ng", 1, 3, f"ab{EVIL}c"),
        expected="x\ny",
    )
    lines = str(finding).splitlines()
    assert not DANGEROUS.search("".join(lines))
    assert [line.startswith("error[") for line in lines].count(True) == 1
    caret = next(line for line in lines if "^" in line)
    above = lines[lines.index(caret) - 1]
    assert above[: caret.index("^")] == "1 | ab"


def test_a_caret_after_escapes_is_below_its_character():
    excerpt = SourceLocation("f", 1, 4, "a\x1bbX").excerpt()
    text, caret = excerpt.splitlines()
    assert text[caret.index("^")] == "X"


@pytest.fixture
def hostile(examples, tmp_path):
    """A bundle in a directory, with files and an operation, of such names."""
    directory = tmp_path / f"b{EVIL}"
    shutil.copytree(examples / "softmax", directory)
    module = directory / "bundle.mlir"
    name = "sdsc_\x1b[2J\x1b]8;;evil:x\x07\x9b31m\u202e.json"
    (directory / "sdsc_0.json").rename(directory / name)
    text = module.read_text()
    assert "sdsc_0.json" in text
    module.write_text(text.replace("sdsc_0.json", name))
    return directory


COMMANDS = (
    [],
    ["-v"],
    ["--check"],
    ["--explain"],
    ["--commands"],
    ["--profile"],
    ["--verify"],
    ["--sanitize"],
    ["--break", "0"],
    ["--against", "ieee"],
    ["-i", "none.npy"],
    ["--warm"],
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("json_too", [False, True])
def test_no_output_holds_control_characters(cli, hostile, words, json_too):
    ran = cli(hostile, *words, *(["--json"] if json_too else []))
    assert not DANGEROUS.search(ran.out + ran.err)
    if json_too:
        printed = json.loads(ran.out)
        assert ran.code == printed["exit_code"]


def test_json_holds_the_names_themselves(cli, hostile):
    printed = json.loads(cli(hostile, "--json").out)
    assert printed["bundle"] == str(hostile)


@pytest.mark.parametrize("form", ["sarif", "junit"])
def test_other_forms_are_valid(hostile, capsys, form):
    from spyre.cli.run import command

    assert command([str(hostile), "--format", form], "spyre check") == 0
    out = capsys.readouterr().out
    assert not DANGEROUS.search(out)
    json.loads(out) if form == "sarif" else ElementTree.fromstring(out)


def test_errors_in_the_module(cli, hostile):
    module = hostile / "bundle.mlir"
    module.write_text(module.read_text().replace("sdscbundle.sdsc_execute", f"evil.{EVIL}op", 1))
    ran = cli(hostile)
    assert ran.code == 2
    assert not DANGEROUS.search(ran.err)


def test_pictures_and_pages(cli, hostile, tmp_path):
    files = [tmp_path / name for name in ("r.html", "r.svg")]
    assert cli(hostile, "--report", files[0], "--roofline", files[1]).code == 0
    assert cli(hostile, "--explain", "--svg", tmp_path / "svg").code == 0
    drawn = [*files, *(tmp_path / "svg").iterdir()]
    assert len(drawn) > 5
    for file in drawn:
        assert not DANGEROUS.search(file.read_text(encoding="utf-8")), file
        if file.suffix == ".svg":
            ElementTree.parse(file)


class Terminal:
    """A stream to a person."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass

    def isatty(self):
        return True


def test_colours_go_to_the_terminal_and_names_do_not(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def refuse(_):
        print("\x1b[2Jprinted", file=sys.stderr)
        terminal_of(sys.stderr).write("\r\x1b[Kprogress\n")
        raise LaunchError("SPY330", "\x1b[2Jname", JsonLocation("\x1b[2Jfile"))

    assert guarded("spyre-run", lambda: None, refuse) == 2
    assert "\x1b[2J" not in terminal.text
    assert terminal.text.count("\\x1b[2J") == 3
    assert "\r\x1b[Kprogress" in terminal.text
    assert "\x1b[1;31m" in terminal.text  # the word error in bold red
