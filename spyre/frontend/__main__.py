"""``python -m spyre.frontend install PATH`` | ``uninstall`` | ``check``.

Exit codes: 0 done; 2 not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from spyre.errors import SpyreError
from spyre.frontend.install import Report, check, install, uninstall

EPILOG = """\
afterwards:
  export SPYRE_FRONTEND=torch-spyre
  python -c "import torch; print(torch.ones(2, device='spyre') + 1)"
"""


PROGRAM = "python -m spyre.frontend"


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Carry out the command line ``arguments`` (default: the process's); returns the exit code."""
    options = _parser(program).parse_args(arguments)
    try:
        done, warnings = _run(options)
    except (SpyreError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for sentence in done:
        print(sentence)
    for sentence in warnings:
        print(f"warning: {sentence}", file=sys.stderr)
    return 0


def _run(options: argparse.Namespace) -> Report:
    if options.command == "install":
        return install(Path(options.path))
    return uninstall() if options.command == "uninstall" else check()


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="torch-spyre, IBM's frontend for PyTorch, unmodified on the simulator.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("install", help="make a checkout of torch-spyre importable")
    make.add_argument("path", metavar="PATH", help="of the checkout")
    commands.add_parser("uninstall", help="undo that")
    commands.add_parser("check", help="say what is installed, and what is missing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
