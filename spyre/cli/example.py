"""``spyre example``: copies the examples that an installation carries, to run and to edit."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from importlib import metadata
from itertools import chain
from pathlib import Path

import spyre
from spyre.cli.entry import guarded
from spyre.cli.options import CommandParser, did_you_mean
from spyre.errors import LaunchError

_WITNESS = Path("softmax", "bundle.mlir")
"""A file of every directory of examples."""


def example(arguments: Sequence[str], program: str = "spyre example") -> int:
    """Carry out a command line; returns the exit code. SystemExit 2 with usage for a wrong one."""

    def parse() -> tuple[Path | None, Path]:
        parser = CommandParser(prog=program, description="Copy an example, or list all of them.")
        parser.add_argument("name", metavar="NAME", nargs="?", help="the example to copy")
        parser.add_argument(
            "directory", metavar="DIRECTORY", nargs="?", help="where to (a new directory NAME)"
        )
        return _choice(parser, parser.parse_args(arguments))

    return guarded(program, parse, lambda chosen: _copy(*chosen))


def _choice(parser: CommandParser, parsed: argparse.Namespace) -> tuple[Path | None, Path]:
    """Return the example, None to list all, and the new directory."""
    known = [path.name for path in examples()]
    target = Path(parsed.directory or parsed.name or ".")
    if parsed.name is None:
        return None, target
    if parsed.name not in known:
        guess = did_you_mean(parsed.name, known)
        parser.error(f"no example {parsed.name!r}{guess} (there are {', '.join(known) or 'none'})")
    if target.exists():
        parser.error(f"{target} exists; give another DIRECTORY")
    return _directory() / parsed.name, target


def examples() -> list[Path]:
    """Return the directories of all examples, sorted; none in an installation without them."""
    root = _directory()
    found = root.iterdir() if root.is_dir() else ()
    return sorted(path for path in found if path.is_dir() and path.name[0] not in "._")


def _directory() -> Path:
    """Return the directory of the examples: of the checkout, or of the installed files."""
    checkout = Path(spyre.__file__).parents[1] / "examples"
    if (checkout / _WITNESS).is_file():
        return checkout
    # A checkout in the current directory may have metadata too, without these files.
    installed = chain.from_iterable(d.files or () for d in metadata.distributions(name="spyre"))
    found = (file for file in installed if file.match(f"share/spyre/examples/{_WITNESS}"))
    return next((Path(str(file.locate())).parents[1] for file in found), checkout)


def _copy(source: Path | None, target: Path) -> int:
    """Copy an example, whole or not at all; LaunchError SPY381 if it cannot be written."""
    if source is None:
        print("\n".join(f"{path.name:<12} {_use(path, path)}" for path in examples()))
        return 0
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as scratch:
            whole = Path(scratch) / target.name
            shutil.copytree(source, whole, ignore=shutil.ignore_patterns("__pycache__"))
            whole.rename(target)
    except OSError as error:
        found = error.strerror or str(error)
        raise LaunchError("SPY381", f"cannot write {target}", found=found) from error
    print(f"{target}: {_use(source, target)}")
    return 0


def _use(example: Path, place: Path) -> str:
    """Return the command that uses an example at a place, or the names of its files."""
    if (example / "bundle.mlir").is_file():
        return f"spyre run {place.name if place == example else place}"
    return ", ".join(sorted(file.name for file in example.iterdir() if file.is_file()))
