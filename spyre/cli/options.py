"""The command line of ``spyre-run``: its arguments, and what they are once parsed.

Only argparse is imported here, so that ``--help`` and ``--version`` cost nothing.
``docs/cli.md`` describes every option.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import spyre

DESCRIPTION = "Run a SuperDSC bundle on the simulated card, or say what is wrong with it."
EPILOG = """\
exit codes: 0 all right; 1 outputs differ, the device faulted, or the sanitizer found an error;
2 it could not run.
examples:
  spyre-run examples/softmax
  spyre-run KERNEL_DIR -i x.npy y.npy -o expected.npy --rtol 0.01
  spyre-run KERNEL_DIR --check
"""


@dataclass(frozen=True)
class Options:
    """A parsed command line; the fields are the options of the same names.

    ``path``: "" for none, which ``warm`` and ``compare`` allow.
    ``strides``: host strides in elements by argument index. ``aliases``: pairs of argument
    indices. ``values``: by parameter name. ``sanitize``: names of checks, "" for all.
    """

    path: str
    inputs: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    rtol: float | None = None
    atol: float | None = None
    exact: bool = False
    save_output: str | None = None
    shapes: tuple[str, ...] = ()
    strides: tuple[tuple[int, tuple[int, ...]], ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    values: tuple[tuple[str, int], ...] = ()
    seed: int = 0
    threads: int | None = None
    numerics: str | None = None
    verify: bool = False
    verify_points: int | None = None
    dump: str | None = None
    against: str | None = None
    sanitize: str | None = None
    poison: bool = False
    core_order: str | None = None
    warm: bool = False
    clear_cache: bool = False
    check: bool = False
    explain: bool = False
    trace: str | None = None
    commands: bool = False
    profile: bool = False
    cost_model: str = "calibrated"
    machine: str | None = None
    overlap: str = "overlapped"
    roofline: str | None = None
    report: str | None = None
    compare: tuple[str, str] | None = None
    json: bool = False
    quiet: bool = False
    verbose: bool = False

    @property
    def models(self) -> bool:
        """Whether times on the card are asked for, in any form."""
        return self.profile or self.roofline is not None or self.report is not None


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse a command line (default: the process's). SystemExit 2 with usage when it is wrong."""
    parser = make_parser()
    words = sys.argv[1:] if arguments is None else arguments
    parsed = parser.parse_args(["--sanitize=" if a == "--sanitize" else a for a in words])
    _check_combination(parser, parsed)
    return Options(
        path=parsed.path or "",
        inputs=tuple(parsed.input),
        expected=tuple(parsed.expected),
        rtol=parsed.rtol,
        atol=parsed.atol,
        exact=parsed.exact,
        save_output=parsed.save_output,
        shapes=tuple(parsed.shape),
        strides=tuple(parsed.strides),
        aliases=tuple(parsed.alias),
        values=tuple(parsed.value),
        seed=parsed.seed,
        threads=parsed.threads,
        numerics=parsed.numerics,
        verify=parsed.verify,
        verify_points=parsed.verify_points,
        dump=parsed.dump,
        against=parsed.against,
        sanitize=parsed.sanitize,
        poison=parsed.poison,
        core_order=parsed.core_order,
        warm=parsed.warm,
        clear_cache=parsed.clear_cache,
        check=parsed.check,
        explain=parsed.explain,
        trace=parsed.trace,
        commands=parsed.commands,
        profile=parsed.profile,
        cost_model=parsed.cost_model,
        machine=parsed.machine,
        overlap=parsed.overlap,
        roofline=parsed.roofline,
        report=parsed.report,
        compare=None if parsed.compare is None else tuple(parsed.compare),
        json=parsed.json,
        quiet=parsed.quiet,
        verbose=parsed.verbose,
    )


def _check_combination(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """SystemExit 2 with usage for options that contradict each other."""
    if parsed.exact and (parsed.rtol is not None or parsed.atol is not None):
        parser.error("--exact allows no tolerance: leave out --rtol and --atol")
    if parsed.verify_points is not None and not parsed.verify:
        parser.error("--verify-points is nothing without --verify")
    if parsed.dump is not None and (parsed.check or parsed.explain):
        parser.error("--check and --explain run nothing that --dump could write")
    if parsed.sanitize is not None and (parsed.verify or parsed.against is not None):
        parser.error("--sanitize watches one plain run: leave out --verify and --against")
    if parsed.against is not None and (parsed.check or parsed.explain or parsed.save_output):
        parser.error("--against runs and compares: leave out --check, --explain, --save-output")
    _check_idle(parser, parsed)


def _check_idle(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """Options of a run next to those that run nothing."""
    is_idle = parsed.check or parsed.explain
    shown = ("dump", "trace", "commands", "profile", "report", "roofline")
    if parsed.warm and (is_idle or any(getattr(parsed, name) for name in shown)):
        names = ", ".join(f"--{name}" for name in ("check", "explain", *shown))
        parser.error(f"--warm runs nothing: leave out {names}")
    _check_profiling(parser, parsed, is_idle)
    if parsed.trace is not None and (is_idle or parsed.against is not None or parsed.verify):
        parser.error(
            "--trace times one plain run: leave out --check, --explain, --against, --verify"
        )
    if parsed.commands and (is_idle or parsed.against is not None):
        parser.error("--commands shows one run: leave out --check, --explain and --against")


def _check_profiling(
    parser: argparse.ArgumentParser, parsed: argparse.Namespace, is_idle: bool
) -> None:
    models = parsed.profile or parsed.report is not None or parsed.roofline is not None
    if models and (is_idle or parsed.against is not None or parsed.verify):
        parser.error(
            "--profile, --report and --roofline model one plain run: leave out --check, --explain, "
            "--against, --verify"
        )
    if parsed.clear_cache and (parsed.path is not None or parsed.warm):
        parser.error("--clear-cache runs nothing: leave out PATH and --warm")
    needs_path = parsed.compare is None and not (parsed.warm or parsed.clear_cache)
    if needs_path and parsed.path is None:
        parser.error("the following arguments are required: PATH")
    alone = (
        "warm",
        "check",
        "explain",
        "verify",
        "trace",
        "commands",
        "dump",
        "save_output",
        "against",
    )
    if parsed.compare is not None and (
        models or parsed.path is not None or any(getattr(parsed, name) for name in alone)
    ):
        parser.error("--compare takes two bundles, cases or kept runs, and shows nothing else")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spyre-run",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="bundle directory, its bundle.mlir, or a case",
    )
    parser.add_argument("--version", action="version", version=f"spyre-run {spyre.__version__}")
    _add_tensors(parser)
    _add_comparison(parser)
    _add_running(parser)
    _add_reporting(parser)
    _add_profiling(parser)
    return parser


def _add_tensors(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tensors")
    group.add_argument(
        "-i",
        "--input",
        metavar="FILE",
        nargs="+",
        action="extend",
        default=[],
        help="input tensors in argument order: .npy, .npz, file.npz:key, .pt, .bin",
    )
    group.add_argument(
        "--save-output", metavar="FILE", help="write the outputs to a .npy, .npz, .pt or .bin"
    )
    group.add_argument(
        "--shape",
        metavar="SHAPE",
        action="append",
        default=[],
        help="host shape of the next input, e.g. 10x512@fp16, scalar@fp32 (repeatable)",
    )
    group.add_argument(
        "--strides",
        metavar="ARG=N,N",
        action="append",
        default=[],
        type=_strides,
        help="host strides in elements of an argument that is not row-major, e.g. 2=1,128",
    )
    group.add_argument(
        "--alias",
        metavar="ARG=ARG",
        action="append",
        default=[],
        type=_alias,
        help="the first argument lies in the memory of the second, e.g. 2=0 (repeatable)",
    )
    group.add_argument(
        "--value",
        metavar="NAME=N",
        action="append",
        default=[],
        type=_value,
        help="value of an index parameter or of a runtime size (repeatable)",
    )
    group.add_argument("--seed", type=int, default=0, help="of random inputs (default 0)")


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "-o",
        "--expected",
        metavar="FILE",
        nargs="+",
        action="extend",
        default=[],
        help="what the outputs should be, in argument order",
    )
    group.add_argument("--rtol", type=float, help="relative tolerance (default: by dtype)")
    group.add_argument("--atol", type=float, help="absolute tolerance (default: by dtype)")
    group.add_argument("--exact", action="store_true", help="allow no difference")


def _add_running(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument(
        "--numerics",
        metavar="MODE",
        help="16-bit floats: dl16 (default), dl16-chunk, ieee, or with options, "
        "e.g. dl16:dma=trunc,alu=even,saturate",
    )
    group.add_argument(
        "--against",
        "--compare-numerics",
        metavar="MODE",
        help="run in this mode too, and say whether rounding explains the difference",
    )
    group.add_argument("--threads", type=_positive, help="host threads (default: all)")
    _add_verifying(group)
    group.add_argument(
        "--sanitize",
        metavar="CHECKS",
        help="watch every access; all checks, or --sanitize=memory,init,race,cover,lx,align",
    )
    group.add_argument(
        "--poison", action="store_true", help="fresh memory holds 0xAA bytes instead of zeros"
    )
    group.add_argument(
        "--core-order",
        metavar="random[:SEED]",
        help="run the cores of an execute one after another in shuffled order",
    )
    group.add_argument(
        "--warm",
        action="store_true",
        help="only compile the kernels that PATH needs, or all of them; later runs start at once",
    )
    group.add_argument(
        "--clear-cache",
        action="store_true",
        help="only remove the compiled kernels and programs that are kept on disk",
    )
    group.add_argument(
        "--check", action="store_true", help="only diagnose: print all findings, run nothing"
    )
    group.add_argument(
        "--explain", action="store_true", help="say what each SDSC does, run nothing"
    )


def _add_verifying(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--verify",
        action="store_true",
        help="run every execute on the slow reference implementation too; stop where they differ",
    )
    group.add_argument(
        "--verify-points",
        metavar="N",
        type=_positive,
        help="with --verify: leave out executes of more than N points (default: 8388608)",
    )
    group.add_argument(
        "--dump", metavar="DIR", help="write what was run as a directory that spyre-run replays"
    )


def _add_reporting(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reporting")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    group.add_argument(
        "--trace", metavar="FILE", help="write what every stream, engine and core did, for Perfetto"
    )
    group.add_argument(
        "--commands", action="store_true", help="print every control block, in the order they ran"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    group.add_argument("-v", "--verbose", action="store_true", help="arguments and every execute")


def _add_profiling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("modelled time on a card")
    group.add_argument(
        "--profile", action="store_true", help="time per execute, what it waits for, share of roofs"
    )
    group.add_argument("--report", metavar="FILE", help="write the profile as one HTML page")
    group.add_argument("--roofline", metavar="FILE", help="write a .png (extra plot)")
    group.add_argument(
        "--compare", metavar=("A", "B"), nargs=2, help="two bundles, cases or kept --profile --json"
    )
    group.add_argument(
        "--cost-model",
        choices=("calibrated", "ideal"),
        default="calibrated",
        help="what cards were measured to do (default), or what the hardware's parameters allow",
    )
    group.add_argument("--machine", metavar="FILE", help="constants over those of the card (.toml)")
    group.add_argument(
        "--overlap",
        choices=("serial", "overlapped", "double-buffered"),
        default="overlapped",
        help="what copies, launches and cores do at the same time (default: as streams have it)",
    )


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _value(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    try:
        return name.removeprefix("%"), int(number, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=INTEGER") from None


def _alias(text: str) -> tuple[int, int]:
    alias, _, target = text.replace("arg_", "").partition("=")
    if not (alias.isdigit() and target.isdigit()) or alias == target:
        raise argparse.ArgumentTypeError(f"{text!r} is not ARG=ARG, such as 2=0")
    return int(alias), int(target)


def _strides(text: str) -> tuple[int, tuple[int, ...]]:
    name, _, numbers = text.partition("=")
    try:
        return int(name.removeprefix("arg_")), tuple(int(n) for n in numbers.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ARG=N,N, such as 2=1,128") from None
