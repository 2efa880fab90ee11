"""Runs the code blocks of a page: Python, and commands with their output.

A page is run in a folder that holds only the examples, its blocks in order; names of Python blocks
are kept for the next one. A comment before a block changes this:

- ``<!-- not run: REASON -->``: the next block is left out.
- ``<!-- file: NAME -->``: the next block is the content of a file.
- ``<!-- before: CODE -->``: Python code that defines names which the page uses.

Lines after ``$ COMMAND`` are its output, and a block ``text`` after a Python block is the output of
that block. ``…`` stands for any text: at the end of a line its rest, alone any number of lines.
Measured times may differ. A command without shown output has to end with exit code 0;
``$ echo $?`` shows the code of the one before.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - {ROOT / "docs" / "errors.md"})
_PART = re.compile(
    r"^(?:<!-- (?P<kind>not run|file|before):\s(?P<said>.*?)-->"
    r"|```(?P<language>\w*)\n(?P<body>.*?)^```)$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(
    r"(\w+=\S+ )*(spyre(-run|-compile)?|dxp_standalone|python3?|pip|pytest|torchrun|git|cat|cp|"
    r"mkdir|sed|grep|echo|export)(?=\s|$)"
)
_TIME = re.compile(r"\b\d[\d.]* (ns|µs|ms|s)(?=\b)")


class Block(msgspec.Struct):
    """``line``: number of the first line of content in the page. ``printed``: output shown."""

    line: int
    language: str
    body: str
    file: str = ""
    printed: str | None = None

    @property
    def is_shell(self) -> bool:
        """True if it holds commands."""
        lines = self.body.splitlines()
        if self.language not in ("", "console", "bash", "sh") or not lines:
            return False
        shown = any(line.startswith("$ ") for line in lines)
        return shown or all(_COMMAND.match(each) for each in _joined(lines))


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a page that are run."""
    blocks: list[Block] = []
    file, left_out, end, is_last = "", False, 0, False
    for part in _PART.finditer(text):
        follows = is_last and not text[end : part.start()].strip()
        end = part.end()
        line = text[: part.start()].count("\n") + 1
        if part["kind"] == "before":
            blocks.append(Block(line, "python", part["said"]))
        elif part["kind"] == "not run":
            left_out = True
        elif part["kind"] == "file":
            file = part["said"].strip()
        if part["kind"]:
            is_last = False
            continue
        block = Block(line + 1, part["language"], part["body"], file)
        if block.language == "text" and follows and blocks[-1].language == "python":
            blocks[-1].printed = block.body
        is_last = not left_out and (block.language == "python" or block.is_shell or bool(file))
        if is_last:
            blocks.append(block)
        file, left_out = "", False
    return blocks


# --- running ------------------------------------------------------------------------------------


def run_page(page: Path) -> None:
    """Run the blocks of a page in the current folder. AssertionError names the line."""
    shutil.copytree(ROOT / "examples", "examples", ignore=shutil.ignore_patterns("__pycache__"))
    sys.path.insert(0, os.getcwd())
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page.read_text(encoding="utf-8")):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.file:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            shown = _printed_by(block.body, names, where)
            print(shown, end="")
            if block.printed is not None:
                require_same(block.printed, shown, where)
        else:
            run_commands(block.body.splitlines(), where)


def _printed_by(body: str, names: dict[str, object], where: str) -> str:
    # Tracebacks and inspection of sources read lines from a file.
    source = Path(f"block_{where.rpartition(':')[2]}.py")
    source.write_text(body, encoding="utf-8")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(body, str(source.resolve()), "exec"), names)
    return shown.getvalue()


def run_commands(lines: list[str], where: str) -> None:
    """Run commands, and compare with their shown output."""
    has_outputs = any(line.startswith("$ ") for line in lines)
    commands: list[tuple[str, list[str]]] = []
    for line in _joined(lines):
        if not has_outputs:
            commands.append((line, []))
        elif line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            commands[-1][1].append(line)
    code = 0
    for command, output in commands:
        code, shown = _run(command, code)
        expected = "\n".join(output)
        if expected.strip():
            require_same(expected, shown, f"{where}: {command}")
        else:
            assert code == 0, f"{where}: {command}: exit code {code}\n{shown}"


def _joined(lines: list[str]) -> list[str]:
    """Lines, those that a backslash ends together with the next."""
    return re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()


def _run(line: str, code: int) -> tuple[int, str]:
    """Run a line; return its exit code and its output on both streams."""
    shown = ""
    for command in shlex.split(line, comments=True) and re.split(r" && ", line):
        code, text = _run_one(command, code)
        shown += text
        if code:
            break
    return code, shown


def _run_one(command: str, code: int) -> tuple[int, str]:
    words = shlex.split(command, comments=True)
    target = words[words.index(">") + 1] if ">" in words else ""
    words = words[: words.index(">")] if target else words
    if words[0] == "pip":  # the installed package is under test
        return 0, ""
    if words[:2] == ["echo", "$?"]:
        return 0, f"{code}\n"
    settings = {}
    while re.fullmatch(r"\w+=.*", words[0]):
        name, _, settings[name] = words.pop(0).partition("=")
    main = _main_of(words)
    if main is None or settings:
        environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
        words = [sys.executable, *words[1:]] if words[0] == "python" else words
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
        code, shown = done.returncode, done.stdout
    else:
        code, shown = _called(*main)
    if target:
        Path(target).write_text(shown, encoding="utf-8")
        return code, ""
    return code, shown


_MAINS = {
    "spyre": "spyre.__main__",
    "spyre-run": "spyre.cli.run",
    "spyre-compile": "spyre.cli.compile",
    "dxp_standalone": "spyre.cli.standalone",
}


def _main_of(words: list[str]) -> tuple[str, list[str]] | None:
    """Return module and arguments of a command of this package, which needs no new process."""
    if words[0] in _MAINS:
        return _MAINS[words[0]], words[1:]
    if words[:2] == ["python", "-m"] and words[2].partition(".")[0] == "spyre":
        return f"{words[2]}.__main__", words[3:]
    return None


def _called(module: str, arguments: list[str]) -> tuple[int, str]:
    main = importlib.import_module(module).main
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            code = main(arguments)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0
    return code, shown.getvalue()


# --- comparing ----------------------------------------------------------------------------------


def require_same(expected: str, found: str, where: str) -> None:
    """AssertionError with both texts where they differ in more than measured times."""
    pattern = "".join(map(_line_pattern, _lines(expected)))
    text = "".join(f"{line}\n" for line in _lines(found))
    assert re.fullmatch(pattern, text), (
        f"{where} shows what is not printed.\n--- shown\n{expected}\n--- printed\n{found}"
    )


def _lines(text: str) -> list[str]:
    """Lines that say something, with times and widths of columns taken out."""
    lines = (" ".join(_TIME.sub("T", line).split()) for line in text.splitlines())
    return [line for line in lines if line.strip("─- ")]


def _line_pattern(line: str) -> str:
    if line == "…":
        return r"(?:.*\n)*?"
    if line.endswith("…"):
        return f"{re.escape(line[:-1])}.*\n"
    return f"{re.escape(line)}\n"
