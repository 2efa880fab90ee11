"""``dxp_standalone``: how torch-spyre asks for a kernel to be compiled, once for each.

The entry point. ``dxp_standalone -d DIR``, or ``dxp_standalone --bundle -d DIR`` as frontends up to
July 2026 call it, writes DIR/spyreCodeDir. The frontend sees the exit code only: 0 compiled,
2 not, with the located error on stderr. It runs for every kernel, so it loads little.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

import spyre
from spyre.cli.entry import guarded, run_process

PROGRAM = "dxp_standalone"


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the command line ``arguments`` (default: the process's); returns the exit code."""
    return guarded(PROGRAM, lambda: _make_parser().parse_args(arguments), _compile)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Compile a bundle directory for torch-spyre's frontend."
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {spyre.__version__}")
    parser.add_argument("--bundle", action="store_true", help="accepted: there is nothing else")
    parser.add_argument("-d", "--directory", metavar="DIR", required=True)
    return parser


def _compile(options: argparse.Namespace) -> int:
    from spyre.runtime.spyrecode import compile_for_frontend

    compile_for_frontend(options.directory)
    return 0


def process() -> NoReturn:
    """The console script."""
    run_process(main)


if __name__ == "__main__":
    process()
