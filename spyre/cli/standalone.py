"""``dxp_standalone``: how torch-spyre asks for a kernel to be compiled, once for each.

The entry point. ``dxp_standalone -d DIR``, or ``dxp_standalone --bundle -d DIR`` as frontends up to
July 2026 call it, writes DIR/spyreCodeDir. The frontend sees the exit code only: 0 compiled,
2 not, with the located error on stderr. It runs for every kernel, so it loads little; a process
with torch-spyre on the simulator does without it (`compile_in_this_process`).
"""

from __future__ import annotations

import argparse
import functools
import subprocess
from collections.abc import Sequence
from typing import Any, NoReturn

import spyre
from spyre.cli.entry import EXIT_NOT_RUN, exit_code_of, guarded, run_process

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


def _compile(options: argparse.Namespace, keep_plan: bool = False) -> int:
    from spyre.runtime.spyrecode import compile_for_frontend

    compile_for_frontend(options.directory, keep_plan)
    return 0


def compile_in_this_process() -> None:
    """Have ``subprocess.run`` carry out this program's command lines without starting a process,
    which takes 0.3 to 0.9 s of CPU time. All other command lines start one.
    """
    start = subprocess.run

    @functools.wraps(start)
    def run(command: Any, *args: Any, **kwargs: Any) -> Any:
        is_ours = isinstance(command, (list, tuple)) and list(command[:1]) == [PROGRAM]
        if not is_ours or args or kwargs.keys() - {"check"}:
            return start(command, *args, **kwargs)
        done: Any = subprocess.CompletedProcess(command, _compile_here(command[1:]))
        if kwargs.get("check"):
            done.check_returncode()
        return done

    subprocess.run = run  # type: ignore[assignment]


def _compile_here(arguments: Sequence[str]) -> int:
    try:
        options = _make_parser().parse_args(arguments)
    except SystemExit:  # of argparse
        return EXIT_NOT_RUN
    return exit_code_of(PROGRAM, functools.partial(_compile, keep_plan=True), options)


def process() -> NoReturn:
    """The console script."""
    run_process(main)


if __name__ == "__main__":
    process()
