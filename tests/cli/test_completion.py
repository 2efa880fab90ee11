"""``spyre completion`` and the man page: made from the parsers of all commands."""

from __future__ import annotations

import builtins
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from spyre.__main__ import COMMANDS, main
from spyre.cli.completion import SHELLS, whole_parser

COMPLETE = """
source ./script
COMP_WORDS=({words}); COMP_CWORD={last}; COMPREPLY=()
_shtab_spyre
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def test_all_commands_have_a_parser():
    help_text = whole_parser().format_help()
    assert all(f"    {name}" in help_text for name in COMMANDS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("spyre", "ch"), "check"),
        (("spyre", "check", "--fail-"), "--fail-on"),
        (("spyre", "check", "--fail-on", "w"), "warning"),
        (("spyre", "run", "scri"), "script"),
    ],
)
def test_bash_completes(tmp_path, capsys, words, expected):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    text = COMPLETE.format(words=" ".join(words), last=len(words) - 1)
    ran = subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout.split() == [expected], ran.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script(capsys, shell):
    assert main(["completion", shell]) == 0
    assert "estimate" in capsys.readouterr().out


def test_without_shtab(monkeypatch, capsys):
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "shtab":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "shtab", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert main(["completion", "bash"]) == 2
    assert "pip install shtab" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("argparse_manpage") is None, reason="needs the extra docs")
def test_the_man_page_is_current():
    from tools.manual import PAGE, manual

    assert PAGE.read_text() == manual(), "run python -m tools.manual"
