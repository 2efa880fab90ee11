"""``spyre`` with its subcommands; ``python -m spyre`` is the same.

A command's module is imported when the command is called, so that ``spyre --help`` starts at once.
Nothing imports this module, which is above all packages.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import spyre
from spyre.cli import did_you_mean, guarded, run_process

EXIT_NOT_RUN = 2

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run a bundle or a case, compare its outputs", "spyre.cli.run:run"),
    "check": ("errors in bundles, found without running them", "spyre.cli.run:command"),
    "explain": ("describe a bundle, or a diagnostic code", "spyre.cli.run:explain"),
    "compile": ("compile a bundle for launches", "spyre.cli.run:compile_bundle"),
    "profile": ("model the time of a run on a card", "spyre.cli.run:command"),
    "compare": ("two bundles or profiles side by side", "spyre.cli.run:command"),
    "diff": ("how two programs differ, without running them", "spyre.cli.diff:diff"),
    "estimate": (
        "modelled times of the kernels in a CSV file, or of a model",
        "spyre.cli.run:command",
    ),
    "sweep": ("weigh machines, core counts, tiles", "spyre.sweep.__main__:main"),
    "warm": ("compile kernels before they are needed", "spyre.cli.run:command"),
    "cache": ("list the caches on disk; empty them", "spyre.cli.run:cache"),
    "doctor": ("whether this installation works", "spyre.cli.doctor:doctor"),
    "example": ("copy an example, or list all of them", "spyre.cli.example:example"),
    "completion": ("print a completion script for a shell", "spyre.cli.completion:completion"),
    "frontend": ("set torch-spyre up on the simulator", "spyre.frontend.__main__:main"),
}
"""Help, and where it is: a function of arguments and of the program's name to the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (default: the process's); returns the exit code: 0 all right;
    1 wrong numbers or a fault of the device; 2 it could not run.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = words[0] if words else "--help"
    if name not in COMMANDS:
        return guarded("spyre", lambda: name, _answer)
    module, _, function = COMMANDS[name][1].partition(":")
    command: Callable[[Sequence[str], str], int]
    command = getattr(importlib.import_module(module), function)
    return command(words[1:], f"spyre {name}")


def _answer(word: str) -> int:
    """Print help, the version, or an error for an unknown command."""
    if word in ("-h", "--help"):
        print(_help())
        return 0
    if word == "--version":
        print(f"spyre {spyre.__version__}")
        return 0
    guess = did_you_mean(word, COMMANDS)
    print(f"spyre: no command {word!r}{guess}\n\n{_help()}", file=sys.stderr)
    return EXIT_NOT_RUN


def _help() -> str:
    rows = "\n".join(f"  {name:<12}{text}" for name, (text, _) in COMMANDS.items())
    return (
        f"usage: spyre COMMAND ...\n\n{spyre.__doc__.splitlines()[0]}\n\ncommands:\n{rows}\n\n"
        "spyre COMMAND --help lists options. Exit codes: 0 all right; 1 wrong numbers\n"
        "or a device fault; 2 it could not run.\n"
        "  spyre doctor\n  spyre run examples/softmax\n  spyre explain SPY702"
    )


def process() -> NoReturn:
    """The console script."""
    run_process(main)


if __name__ == "__main__":
    process()
