"""``spyre completion SHELL``: a script that completes the commands and options of ``spyre``."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

import spyre
from spyre.cli.entry import guarded
from spyre.cli.options import CommandParser
from spyre.errors import UnsupportedError

SHELLS = ("bash", "zsh", "tcsh")
_FILES = ("PATH", "FILE", "DIR", "DIRECTORY", "A", "B")
"""Arguments that are completed with names of files, by their names in the help."""


def completion(arguments: Sequence[str], program: str = "spyre completion") -> int:
    """Print the script for a shell; returns the exit code."""

    def parse() -> str:
        parser = CommandParser(
            prog=program,
            description="Print a script that completes commands and options.",
            epilog='example: eval "$(spyre completion bash)"',
        )
        parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
        return str(parser.parse_args(arguments).shell)

    return guarded(program, parse, _print_script)


def _print_script(shell: str) -> int:
    try:
        import shtab
    except ImportError:
        raise UnsupportedError(
            "SPY743", "completion of commands needs shtab", hint="pip install shtab"
        ) from None
    parser = whole_parser(files=shtab.FILE)
    print(shtab.complete(parser, shell))
    return 0


class _Made(BaseException):
    """Carries a parser out of the command that made it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def whole_parser(files: Any = None) -> argparse.ArgumentParser:
    """Return one parser of all commands. ``files``: attribute ``complete`` of names of files."""
    from spyre.__main__ import COMMANDS

    parser = argparse.ArgumentParser(prog="spyre", description=str(spyre.__doc__).splitlines()[0])
    parser.add_argument("--version", action="version", version=spyre.__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (text, place) in COMMANDS.items():
        own = _parser_of(f"spyre {name}", place)
        for action in own._actions:
            if action.metavar in _FILES:
                action.complete = files  # type: ignore[attr-defined]
        commands.add_parser(
            name, parents=[own], add_help=False, help=text, description=own.description
        )
    return parser


def _parser_of(program: str, place: str) -> argparse.ArgumentParser:
    """Return the parser of a command, which is called, but only until it parses its arguments."""

    def stop(parser: argparse.ArgumentParser, *_: object) -> None:
        raise _Made(parser)

    module, _, function = place.partition(":")
    command = getattr(importlib.import_module(module), function)
    original = argparse.ArgumentParser.parse_known_args
    argparse.ArgumentParser.parse_known_args = stop  # type: ignore[method-assign, assignment]
    try:
        command([], program)
    except _Made as made:
        return made.parser
    finally:
        argparse.ArgumentParser.parse_known_args = original  # type: ignore[method-assign]
    raise AssertionError(f"{program} parses no arguments")
