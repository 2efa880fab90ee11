"""The command line of ``spyre-run``: its arguments, and what they are once parsed.

Only argparse is imported here, so that ``--help`` and ``--version`` cost nothing.
``docs/cli.md`` describes every option.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, NoReturn

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
    indices. ``break_at``: number of an execute and loop indices. ``values``: by parameter name.
    ``sanitize``: names of checks, "" for all.
    """

    path: str = ""
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
    expect: str | None = None
    break_at: tuple[int, tuple[int, ...]] | None = None
    tensors: tuple[str, ...] = ()
    save_tensors: str | None = None
    dump: str | None = None
    against: str | None = None
    sanitize: str | None = None
    poison: bool = False
    core_order: str | None = None
    warm: bool = False
    clear_cache: bool = False
    check: bool = False
    explain: bool = False
    svg: str | None = None
    trace: str | None = None
    commands: bool = False
    profile: bool = False
    cost_model: str = "calibrated"
    machine: str | None = None
    overlap: str = "overlapped"
    roofline: str | None = None
    modelled_trace: str | None = None
    report: str | None = None
    compare: tuple[str, str] | None = None
    json: bool = False
    format: str = "text"
    quiet: bool = False
    verbose: bool = False

    @property
    def models(self) -> bool:
        """Whether times on the card are asked for, in any form."""
        files = (self.roofline, self.report, self.modelled_trace)
        return self.profile or any(file is not None for file in files)


class CommandParser(argparse.ArgumentParser):
    """An argument parser that guesses what an option that does not exist was meant to be."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.refuse(unknown)
        return parsed

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """SystemExit 2 for arguments that are none of this command."""
        guesses = [did_you_mean(word, self._option_string_actions) for word in unknown]
        self.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(guesses)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean X?``, or nothing when no known word is like this one."""
    name = word.partition("=")[0]
    close = get_close_matches(name, list(known), n=1) if name.strip("-") else []
    return f"; did you mean {close[0]}?" if close else ""


def parse_options(
    arguments: Sequence[str] | None = None, program: str = "spyre-run", form: str = "run"
) -> Options:
    """Parse a command line (default: the process's). SystemExit 2 with usage when it is wrong.

    ``form``: one of `FORMS`, which says what a command of the name ``program`` takes.
    """
    parser = make_parser(program, form)
    words = sys.argv[1:] if arguments is None else arguments
    parsed = parser.parse_args(["--sanitize=" if a == "--sanitize" else a for a in words])
    for name, value in FORMS[form].fixed:
        setattr(parsed, name, value)
    _take_shapes_out_of_inputs(parser, parsed)
    _check_combination(parser, parsed)
    values: dict[str, Any] = {each.name: getattr(parsed, each.name) for each in fields(Options)}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Options(**(values | lists))


def _take_shapes_out_of_inputs(parser: CommandParser, parsed: argparse.Namespace) -> None:
    """``-i 10x512@fp16`` is a random input of that shape, as for torch-spyre's tools."""
    are_shapes = [_is_shape(text) for text in parsed.inputs]
    if not any(are_shapes):
        return
    if not all(are_shapes):
        parser.error("-i takes files, or shapes such as 10x512@fp16, and not both")
    parsed.shapes, parsed.inputs = [*parsed.shapes, *parsed.inputs], []


def _is_shape(text: str) -> bool:
    return bool(re.fullmatch(r"(scalar|\d+(x\d+)*)@\w+", text)) and not os.path.exists(text)


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
    if parsed.svg is not None and not parsed.explain:
        parser.error("--svg is nothing without --explain")
    _check_watching(parser, parsed)
    _check_idle(parser, parsed)


def _check_watching(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    if parsed.break_at is None and (parsed.tensors or parsed.save_tensors is not None):
        parser.error("--print and --save-tensors are nothing without --break")
    # Modelled times come from what runs, not from how long it takes under watch.
    others = ("verify", "against", "check", "explain", "warm", "trace", "commands")
    alone = (*others, "dump", "compare")
    unlike = [name for name in alone if getattr(parsed, name)]
    unlike += ["sanitize"] if parsed.sanitize is not None else []
    if unlike and (parsed.expect is not None or parsed.break_at is not None):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unlike)
        parser.error(f"--expect and --break watch one plain run: leave out {names}")


def _check_idle(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """Options of a run next to those that run nothing."""
    is_idle = parsed.check or parsed.explain
    shown = ("dump", "trace", "commands", "profile", "report", "roofline", "modelled_trace")
    if parsed.warm and (is_idle or any(getattr(parsed, name) for name in shown)):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in ("check", "explain", *shown))
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
    files = (parsed.report, parsed.roofline, parsed.modelled_trace)
    models = parsed.profile or any(file is not None for file in files)
    if models and (is_idle or parsed.against is not None or parsed.verify):
        parser.error(
            "--profile, --report, --roofline and --modelled-trace model one plain run: leave out "
            "--check, --explain, --against, --verify"
        )
    if parsed.clear_cache and (parsed.path or parsed.warm):
        parser.error("--clear-cache runs nothing: leave out PATH and --warm")
    needs_path = parsed.compare is None and not (parsed.warm or parsed.clear_cache)
    if needs_path and not parsed.path:
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
        models or parsed.path or any(getattr(parsed, name) for name in alone)
    ):
        parser.error("--compare takes two bundles, cases or kept runs, and shows nothing else")


def make_parser(program: str = "spyre-run", form: str = "run") -> CommandParser:
    parser = CommandParser(
        prog=program,
        description=FORMS[form].description,
        epilog=EPILOG if form == "run" else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(**{field.name: field.default for field in fields(Options)})
    FORMS[form].add_path(parser)
    parser.add_argument("--version", action="version", version=f"{program} {spyre.__version__}")
    for add in FORMS[form].groups:
        add(parser)
    return parser


def _add_optional_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="bundle directory, its bundle.mlir, or a case"
    )


def _add_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="bundle directory, its bundle.mlir, or a case")


def _add_pair(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "compare", metavar="PATH", nargs=2, help="bundle, case or kept spyre profile --json"
    )


def _add_tensors(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tensors")
    group.add_argument(
        "-i",
        "--input",
        dest="inputs",
        metavar="FILE",
        nargs="+",
        action="extend",
        default=[],
        help="input tensors in argument order: .npy, .npz, file.npz:key, .pt, .bin; or shapes of "
        "random ones, e.g. 10x512@fp16",
    )
    group.add_argument(
        "--save-output", metavar="FILE", help="write the outputs to a .npy, .npz, .pt or .bin"
    )
    group.add_argument(
        "--shape",
        dest="shapes",
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
        dest="aliases",
        metavar="ARG=ARG",
        action="append",
        default=[],
        type=_alias,
        help="the first argument lies in the memory of the second, e.g. 2=0 (repeatable)",
    )
    _add_values(group)
    group.add_argument("--seed", type=int, default=0, help="of random inputs (default 0)")


def _add_values(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--value",
        "--bind",
        dest="values",
        metavar="NAME=N",
        action="append",
        default=[],
        type=_value,
        help="value of an index parameter or of a runtime size (repeatable)",
    )


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


def _add_idle(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("instead of running")
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
    _add_pictures(group)


def _add_verifying(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--verify-simulator",
        "--verify",
        dest="verify",
        action="store_true",
        help="check the simulator, not the program: run every execute on the slow reference "
        "implementation too; stop where they differ",
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


def _add_watching(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("watching execute by execute")
    group.add_argument(
        "--expect",
        metavar="torch:FILE.py:NAME",
        help="run this function on the CPU, and find the first execute that deviates from it",
    )
    group.add_argument(
        "--break",
        dest="break_at",
        metavar="N[:I,J]",
        type=_execution,
        help="print tensors as they are right after execute N (at these loop indices)",
    )
    group.add_argument(
        "--print",
        dest="tensors",
        metavar="NAME",
        action="append",
        default=[],
        help="with --break: a tensor of the execute, in HBM or LX, e.g. Tensor1 (repeatable; "
        "default: all)",
    )
    group.add_argument(
        "--save-tensors", metavar="FILE", help="with --break: write them to a .npz too"
    )


def _execution(text: str) -> tuple[int, tuple[int, ...]]:
    number, _, loops = text.partition(":")
    try:
        return int(number), tuple(int(n) for n in loops.split(",") if n)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not N or N:I,J, such as 3:0,1") from None


def _add_reporting(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reporting")
    _add_output(group)
    group.add_argument(
        "--trace", metavar="FILE", help="write what every stream, engine and core did, for Perfetto"
    )
    group.add_argument(
        "--commands", action="store_true", help="print every control block, in the order they ran"
    )


def _add_output(group: argparse._ActionsContainer) -> None:
    group.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    group.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    group.add_argument("-v", "--verbose", action="store_true", help="arguments and every execute")


def _add_modelled(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("modelled time on a card")
    group.add_argument(
        "--profile", action="store_true", help="time per execute, what it waits for, share of roofs"
    )
    group.add_argument(
        "--compare", metavar=("A", "B"), nargs=2, help="two bundles, cases or kept --profile --json"
    )
    _add_drawings(group)
    _add_machine(group)


def _add_profiling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("modelled time on a card")
    _add_drawings(group)
    _add_machine(group)


def _add_drawings(group: argparse._ActionsContainer) -> None:
    group.add_argument("--report", metavar="FILE", help="write the profile as one HTML page")
    group.add_argument("--roofline", metavar="FILE", help="write the roofline as .svg")
    group.add_argument(
        "--modelled-trace",
        metavar="FILE",
        help="write modelled time alone as a trace, for Perfetto; --trace has the host's beside it",
    )


def _add_machine(group: argparse._ActionsContainer) -> None:
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


def _add_pictures(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--svg",
        metavar="DIR",
        help="draw layouts, cores, tiles and the graph of executes as SVG, and a page with all",
    )


def _add_format(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--format",
        choices=("text", "json", "sarif", "junit"),
        default="text",
        help="text (default); json, as --json; sarif or junit for other tools",
    )


@dataclass(frozen=True)
class Form:
    """What a command takes. ``fixed``: options that it stands for, with their values."""

    description: str
    add_path: Callable[[argparse.ArgumentParser], None]
    groups: tuple[Callable[[argparse.ArgumentParser], None], ...]
    fixed: tuple[tuple[str, Any], ...] = ()


FORMS = {
    "run": Form(
        DESCRIPTION,
        _add_optional_path,
        (
            _add_tensors,
            _add_comparison,
            _add_running,
            _add_watching,
            _add_idle,
            _add_reporting,
            _add_modelled,
        ),
    ),
    "check": Form(
        "Print everything that can be found wrong with a bundle without running it.",
        _add_path,
        (_add_values, _add_output, _add_format),
        (("check", True),),
    ),
    "explain": Form(
        "Say what each SDSC of a bundle does, or what a diagnostic code means.",
        _add_path,
        (_add_values, _add_output, _add_pictures),
        (("explain", True),),
    ),
    "profile": Form(
        "Run a bundle, and say what the run would cost on a card and what bounds it.",
        _add_path,
        (_add_tensors, _add_running, _add_reporting, _add_profiling),
        (("profile", True),),
    ),
    "compare": Form(
        "Put what two bundles, cases or kept profiles cost on a card side by side.",
        _add_pair,
        (_add_machine, _add_output),
    ),
    "warm": Form(
        "Compile the kernels that a bundle needs, or all of them; later runs start at once.",
        _add_optional_path,
        (_add_tensors, _add_running, _add_output),
        (("warm", True),),
    ),
}


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
