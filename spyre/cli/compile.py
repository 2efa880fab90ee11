"""``spyre-compile``: a bundle directory to its SpyreCode directory, which launches are made of.

The entry point. Exit codes: 0 compiled, 2 not (runtime reference §5). Work is imported only when
needed, so that ``--help`` starts at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

import spyre
from spyre.cli.entry import guarded, run_process
from spyre.cli.options import CommandParser

DESCRIPTION = "Compile a SuperDSC bundle into the spyreCodeDir that the runtime launches."
EPILOG = """\
exit codes: 0 compiled; 2 the bundle is wrong, or the directory cannot be written.
example:
  {example}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the command line ``arguments`` (default: the process's); returns the exit code.

    Errors this package raises on purpose are printed; any other exception is a bug and propagates.
    """
    return guarded("spyre-compile", lambda: make_parser().parse_args(arguments), compile_and_report)


def make_parser(program: str = "spyre-compile") -> argparse.ArgumentParser:
    """``spyre-compile`` takes its directory as torch-spyre gives it, others as an argument."""
    is_plain = program != "spyre-compile"
    example = f"{program} KERNEL_DIR" if is_plain else f"{program} --bundle -d KERNEL_DIR"
    parser = CommandParser(
        prog=program,
        description=DESCRIPTION,
        epilog=EPILOG.format(example=example),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{program} {spyre.__version__}")
    if is_plain:
        parser.add_argument("directory", metavar="DIR", help="directory with bundle.mlir")
    else:
        parser.add_argument(
            "--bundle", action="store_true", required=True, help="what is compiled is a bundle"
        )
        parser.add_argument(
            "-d", "--directory", metavar="DIR", required=True, help="directory with bundle.mlir"
        )
    parser.add_argument(
        "--check", action="store_true", help="only diagnose: print all findings, write nothing"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    return parser


def compile_and_report(options: argparse.Namespace) -> int:
    if options.check:
        return _diagnose(options)
    from spyre.runtime.spyrecode import compile_directory

    compiled = compile_directory(options.directory)
    if not options.quiet:
        from spyre.cli.text_report import print_warnings

        print_warnings(compiled.findings, show_all=True)
        size_bytes, n_symbols = compiled.code.allocation_bytes, compiled.n_symbols
        print(f"{compiled.directory}: {size_bytes} bytes of program memory, {n_symbols} symbols")
    return 0


def _diagnose(arguments: argparse.Namespace) -> int:
    """Print findings as ``spyre-run --check`` does."""
    from spyre.cli.diagnose import diagnose_bundle
    from spyre.cli.options import DiagnoseOptions
    from spyre.cli.text_report import print_diagnosis

    options = DiagnoseOptions(arguments.directory, check=True, quiet=arguments.quiet)
    diagnosis = diagnose_bundle(arguments.directory, options)
    print_diagnosis(diagnosis, options)
    return diagnosis.exit_code


def process() -> NoReturn:
    """The console script."""
    run_process(main)


if __name__ == "__main__":
    process()
