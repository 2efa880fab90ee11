"""Command lines: an options class for each command, and the parsers that fill them.

``spyre-run`` and ``spyre run`` accept the flags of all commands and choose the command by its flag
(``--check``, ``--warm`` ...); ``spyre check`` and the like accept their own flags only. Nothing but
argparse is imported here, so that ``--help`` and ``--version`` start at once. ``docs/cli.md``
describes every option.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, Self

import spyre

DESCRIPTION = "Run a SuperDSC bundle on the simulated card, or check it for errors."
EPILOG = """\
exit codes: 0 all right; 1 outputs differ, the device faulted, or the sanitizer found an error;
2 it could not run.
examples:
  spyre-run examples/softmax
  spyre-run KERNEL_DIR -i x.npy y.npy -o expected.npy --rtol 0.01
  spyre-run KERNEL_DIR --check
"""


# --- options ----------------------------------------------------------------------------------


class CommandOptions:
    """Options of one command: the annotated names of the class with their defaults, unchangeable.

    No dataclass: those compile methods for each class at every start.
    """

    def __init__(self, path: str | None = None, **values: Any) -> None:
        if path is not None:
            values["path"] = path
        if unknown := values.keys() - set(option_names(type(self))):
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot assign to option {name!r}")

    def replaced(self, **values: Any) -> Self:
        """Return these options with other values."""
        return type(self)(**(vars(self) | values))


def option_names(kind: type[CommandOptions]) -> list[str]:
    """Return the names of the options of a command."""
    return [name for base in kind.__mro__[-2::-1] for name in base.__annotations__]


class Options(CommandOptions):
    """Options of all commands that read a bundle or case; fields are named like the flags.

    ``path``: "" if the command allows to leave it out. ``strides``: host strides in elements by
    argument index. ``aliases``: pairs of argument indices. ``values``: by parameter name.
    """

    path: str = ""
    inputs: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    strides: tuple[tuple[int, tuple[int, ...]], ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    values: tuple[tuple[str, Any], ...] = ()
    function: str | None = None
    seed: int = 0
    json: bool = False
    quiet: bool = False
    verbose: bool = False


class DiagnoseOptions(Options):
    """Options of ``check`` and ``explain``.

    ``fail_on``: severity that makes the exit code other than 0. ``select``, ``ignore``: the first
    characters of codes. ``baseline``: a file of findings that are known.
    """

    check: bool = False
    explain: bool = False
    svg: str | None = None
    format: str = "text"
    fail_on: str = "error"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    baseline: str | None = None


class DeviceOptions(Options):
    """Options of commands that make a device."""

    numerics: str | None = None
    threads: int | None = None
    poison: bool = False
    core_order: str | None = None


class WarmOptions(DeviceOptions):
    """Options of ``warm``. ``sanitize``: names of checks, "" for all."""

    sanitize: str | None = None
    warm: bool = True


class ComparisonOptions(DeviceOptions):
    """Options of commands that compare outputs with expected ones."""

    expected: tuple[str, ...] = ()
    rtol: float | None = None
    atol: float | None = None
    exact: bool = False


class NumericsOptions(ComparisonOptions):
    """Options of the comparison of two number modes, ``numerics`` and ``against``."""

    against: str = ""


class CompareOptions(DeviceOptions):
    """Options of the comparison of two profiles."""

    compare: tuple[str, str] = ("", "")
    cost_model: str = "calibrated"
    machine: str | None = None
    overlap: str = "overlapped"


class ExecuteOptions(ComparisonOptions):
    """Options of ``run`` and ``profile``.

    ``sanitize``: names of checks, "" for all. ``break_at``: number of an execute and loop indices.
    """

    save_output: str | None = None
    verify: bool = False
    verify_points: int | None = None
    sanitize: str | None = None
    expect: str | None = None
    break_at: tuple[int, tuple[int, ...]] | None = None
    tensors: tuple[str, ...] = ()
    save_tensors: str | None = None
    dump: str | None = None
    trace: str | None = None
    commands: bool = False
    profile: bool = False
    cost_model: str = "calibrated"
    machine: str | None = None
    overlap: str = "overlapped"
    roofline: str | None = None
    modelled_trace: str | None = None
    report: str | None = None

    @property
    def models(self) -> bool:
        """True if modelled times are asked for, in any form."""
        files = (self.roofline, self.report, self.modelled_trace)
        return self.profile or any(file is not None for file in files)


class EstimateOptions(Options):
    """Options of ``estimate``. ``fit``: measured rows, ``output``: the machine file to write;
    ``model`` and the options behind it: as of `estimate_model`, None if not given.
    """

    machine: str | None = None
    fit: str | None = None
    output: str | None = None
    csv: bool = False
    model: str | None = None
    cards: int | None = None
    batch: int | None = None
    prompt: int | None = None
    dtype: str | None = None
    lx_fraction: float | None = None


class ClearCacheOptions(CommandOptions):
    """Options of ``--clear-cache``."""

    clear_cache: bool = True
    quiet: bool = False


_BY_FLAG: dict[str, type[CommandOptions]] = {
    "clear_cache": ClearCacheOptions,
    "check": DiagnoseOptions,
    "explain": DiagnoseOptions,
    "against": NumericsOptions,
    "compare": CompareOptions,
    "warm": WarmOptions,
}
"""Commands that ``spyre-run`` chooses by a flag, in order of precedence; without one it runs."""
_NEEDS = {
    "verify_points": "verify",
    "tensors": "break_at",
    "save_tensors": "break_at",
    "svg": "explain",
    "output": "fit",
    **dict.fromkeys(("cards", "batch", "prompt", "dtype", "lx_fraction"), "model"),
}
"""Options that only have a meaning with another one."""
_EXCLUDES = {
    "exact": ("rtol", "atol"),
    "sanitize": ("verify", "expect", "break_at"),
    "verify": ("expect", "break_at", "trace", "profile", "report", "roofline", "modelled_trace"),
    "expect": ("trace", "commands", "dump"),
    "break_at": ("trace", "commands", "dump"),
    "format": ("json",),
    "csv": ("json",),
    "model": ("csv",),
}
"""Options of a run that contradict each other: several ways to execute, or times that the way to
execute does not measure."""


# --- parsing ----------------------------------------------------------------------------------


class CommandParser(argparse.ArgumentParser):
    """An argument parser that suggests an existing option for an unknown or shortened one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            guesses = [did_you_mean(word, self._option_string_actions) for word in unknown]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(guesses)}")
        return parsed


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean X?``, or nothing when no known word is like this one."""
    name = word.partition("=")[0]
    close = get_close_matches(name, list(known), n=1) if name.strip("-") else []
    return f"; did you mean {close[0]}?" if close else ""


def parse_spyre_run(
    arguments: Sequence[str] | None = None, program: str = "spyre-run"
) -> CommandOptions:
    """Parse a command line of ``spyre-run`` (default: the process's).

    SystemExit 2 with usage for a wrong one, such as an option that the chosen command lacks.
    """
    parser = spyre_run_parser(program)
    parsed = _parse(parser, arguments)
    given = {name for name, value in vars(parsed).items() if value != parser.get_default(name)}
    flag = next((name for name in _BY_FLAG if name in given), "")
    kind = _BY_FLAG.get(flag, ExecuteOptions)
    _check_needs(parser, given)
    unknown = sorted(_flag(name) for name in given.difference(option_names(kind)))
    if unknown:
        parser.error(f"{_flag(flag) if flag else program} does not take {', '.join(unknown)}")
    if not parsed.path and flag not in ("clear_cache", "compare", "warm"):
        parser.error("the following arguments are required: PATH")
    if parsed.path and flag == "compare":
        parser.error("--compare does not take PATH")
    return _options(parser, parsed, kind)


def parse_command(
    name: str, arguments: Sequence[str] | None = None, program: str = "spyre"
) -> CommandOptions:
    """Parse a command line of the `COMMANDS` entry ``name``; SystemExit 2 with usage."""
    description, kind, paths, groups, fixed = COMMANDS[name]
    parser = make_parser(program, description, paths, groups)
    parsed = _parse(parser, arguments)
    for option, value in fixed.items():
        setattr(parsed, option, value)
    if kind is EstimateOptions:
        _check_source(parser, parsed)
    return _options(parser, parsed, kind)


def _check_source(parser: CommandParser, parsed: argparse.Namespace) -> None:
    """SystemExit 2 unless ``estimate`` has rows or a model, or only fits."""
    if parsed.path and parsed.model:
        parser.error("--model does not go together with PATH")
    if not (parsed.path or parsed.model or parsed.fit):
        parser.error("the following arguments are required: PATH, --model, or --fit")


def spyre_run_parser(program: str = "spyre-run") -> CommandParser:
    """The parser of ``spyre-run``, which has the options of all commands."""
    return make_parser(program, DESCRIPTION, "?", _SPYRE_RUN, EPILOG)


def _parse(parser: CommandParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    words = sys.argv[1:] if arguments is None else arguments
    return parser.parse_args(["--sanitize=" if a == "--sanitize" else a for a in words])


def _options(
    parser: CommandParser, parsed: argparse.Namespace, kind: type[CommandOptions]
) -> CommandOptions:
    """The options of a command. SystemExit 2 for options that contradict each other."""
    if "inputs" in parsed:
        _take_shapes_out_of_inputs(parser, parsed)
    names = option_names(kind)
    values: dict[str, Any] = {name: getattr(parsed, name) for name in names if name in parsed}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    options = kind(**(values | lists))
    _check_combination(parser, {name: getattr(options, name) for name in names})
    return options


def _check_combination(parser: CommandParser, values: Mapping[str, object]) -> None:
    given = {name for name, value in values.items() if value not in (None, False, (), "text")}
    _check_needs(parser, given)
    for option, others in _EXCLUDES.items():
        found = [_flag(name) for name in others if name in given]
        if option in given and found:
            parser.error(f"{_flag(option)} does not go together with {', '.join(found)}")


def _check_needs(parser: CommandParser, given: Collection[str]) -> None:
    for option, needed in _NEEDS.items():
        if option in given and needed not in given:
            parser.error(f"{_flag(option)} is nothing without {_flag(needed)}")


def _take_shapes_out_of_inputs(parser: CommandParser, parsed: argparse.Namespace) -> None:
    """``-i 10x512@fp16`` is a random input of that shape, as for torch-spyre's tools."""
    shape = re.compile(r"(scalar|\d+(x\d+)*)@\w+")
    are_shapes = [
        bool(shape.fullmatch(text)) and not os.path.exists(text) for text in parsed.inputs
    ]
    if not any(are_shapes):
        return
    if not all(are_shapes):
        parser.error("-i takes files, or shapes such as 10x512@fp16, and not both")
    parsed.shapes, parsed.inputs = [*parsed.shapes, *parsed.inputs], []


# --- values of options ------------------------------------------------------------------------


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _fraction(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def _value(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name.removeprefix("%"), _number(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER") from None


def _number(text: str) -> float:
    try:
        return int(text, 0)
    except ValueError:
        return float(text)


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


def _execution(text: str) -> tuple[int, tuple[int, ...]]:
    number, _, loops = text.partition(":")
    try:
        return int(number), tuple(int(n) for n in loops.split(",") if n)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not N or N:I,J, such as 3:0,1") from None


def _codes(text: str) -> tuple[str, ...]:
    """Beginnings of diagnostic codes, each of at least one code."""
    from spyre.codes import diagnostic_codes

    known, words = diagnostic_codes(), tuple(word.upper() for word in text.split(","))
    for word in words:
        if not word or not any(code.startswith(word) for code in known):
            guess = did_you_mean(word, known)
            raise argparse.ArgumentTypeError(f"no code begins with {word!r}{guess}")
    return words


# --- tables of options ------------------------------------------------------------------------


_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "inputs": ("-i --input", {
        "metavar": "FILE", "nargs": "+", "action": "extend",
        "help": "input tensors in argument order: .npy, .npz, file.npz:key, .pt, .bin; or shapes "
        "of random ones, e.g. 10x512@fp16; of a KTIR text NAME=FILE"}),
    "save_output": ("--save-output", {
        "metavar": "FILE", "help": "write the outputs to a .npy, .npz, .pt or .bin"}),
    "shapes": ("--shape", {
        "metavar": "SHAPE", "action": "append",
        "help": "host shape of the next input, e.g. 10x512@fp16, scalar@fp32 (repeatable)"}),
    "strides": ("--strides", {
        "metavar": "ARG=N,N", "action": "append", "type": _strides,
        "help": "host strides in elements of an argument that is not row-major, e.g. 2=1,128"}),
    "aliases": ("--alias", {
        "metavar": "ARG=ARG", "action": "append", "type": _alias,
        "help": "the first argument shares the memory of the second, e.g. 2=0 (repeatable)"}),
    "values": ("--value --bind", {
        "metavar": "NAME=N", "action": "append", "type": _value,
        "help": "value of an index parameter, a runtime size, or a number of a KTIR function "
        "(repeatable)"}),
    "function": ("--function", {
        "metavar": "NAME", "help": "of a KTIR text with several functions: the one to run"}),
    "seed": ("--seed", {"type": int, "help": "of random inputs (default 0)"}),
    "expected": ("-o --expected", {
        "metavar": "FILE", "nargs": "+", "action": "extend",
        "help": "expected outputs, in argument order; of a KTIR text NAME=FILE"}),
    "rtol": ("--rtol", {"type": float, "help": "relative tolerance (default: by dtype)"}),
    "atol": ("--atol", {"type": float, "help": "absolute tolerance (default: by dtype)"}),
    "exact": ("--exact", {"help": "allow no difference"}),
    "numerics": ("--numerics", {
        "metavar": "MODE",
        "help": "16-bit floats: dl16 (default), dl16-chunk, ieee, card, or with options, "
        "e.g. dl16:dma=trunc,alu=even,saturate"}),
    "threads": ("--threads", {"type": _positive, "help": "host threads (default: all)"}),
    "sanitize": ("--sanitize", {
        "metavar": "CHECKS",
        "help": "watch every access; all checks, or --sanitize=memory,init,race,cover,lx,align"}),
    "poison": ("--poison", {"help": "fresh memory holds 0xAA bytes instead of zeros"}),
    "core_order": ("--core-order", {
        "metavar": "random[:SEED]",
        "help": "run the cores of an execute one after another in shuffled order"}),
    "against": ("--against --compare-numerics", {
        "metavar": "MODE",
        "help": "run in this mode too, and report whether rounding explains the difference"}),
    "verify": ("--verify-simulator --verify", {
        "help": "check the simulator, not the program: run every execute on the slow reference "
        "implementation too; stop where they differ"}),
    "verify_points": ("--verify-points", {
        "metavar": "N", "type": _positive,
        "help": "with --verify: skip executes of more than N points (default: 8388608)"}),
    "expect": ("--expect", {
        "metavar": "torch:FILE.py:NAME",
        "help": "run this function on the CPU, and find the first execute that deviates from it"}),
    "break_at": ("--break", {
        "metavar": "N[:I,J]", "type": _execution,
        "help": "print tensors right after execute N (at these loop indices)"}),
    "tensors": ("--print", {
        "metavar": "NAME", "action": "append",
        "help": "with --break: a tensor of the execute, in HBM or LX, e.g. Tensor1 (repeatable; "
        "default: all)"}),
    "save_tensors": ("--save-tensors", {
        "metavar": "FILE", "help": "with --break: write them to a .npz too"}),
    "warm": ("--warm", {
        "help": "only compile the kernels that PATH needs, or all of them; later runs start at "
        "once"}),
    "clear_cache": ("--clear-cache", {
        "help": "only remove the compiled kernels and programs that are kept on disk"}),
    "check": ("--check", {"help": "only diagnose: print all findings, run nothing"}),
    "explain": ("--explain", {"help": "describe each SDSC, run nothing"}),
    "svg": ("--svg", {
        "metavar": "DIR",
        "help": "draw layouts, cores, tiles and the graph of executes as SVG, and a page with "
        "all"}),
    "format": ("--format", {
        "choices": ("text", "json", "sarif", "junit", "github", "gitlab"),
        "help": "text (default); json, as --json; sarif, junit, github (annotations) or gitlab "
        "(code quality) for other tools"}),
    "fail_on": ("--fail-on", {
        "choices": ("error", "warning"),
        "help": "exit code 1 for warnings too (default: error)"}),
    "select": ("--select", {
        "metavar": "CODES", "type": _codes,
        "help": "only warnings whose codes begin so, e.g. SPY70,SPY720"}),
    "ignore": ("--ignore", {
        "metavar": "CODES", "type": _codes, "help": "no warnings whose codes begin so"}),
    "baseline": ("--baseline", {
        "metavar": "FILE",
        "help": "no warnings that are in FILE, which spyre check --json wrote"}),
    "json": ("--json", {"help": "print one JSON object instead of text"}),
    "quiet": ("-q --quiet", {"help": "print errors only"}),
    "verbose": ("-v --verbose", {"help": "arguments and every execute"}),
    "dump": ("--dump", {
        "metavar": "DIR", "help": "write the run as a directory that spyre-run replays"}),
    "trace": ("--trace", {
        "metavar": "FILE", "help": "write the work of streams, engines and cores, for Perfetto"}),
    "commands": ("--commands", {"help": "print every control block, in the order they ran"}),
    "profile": ("--profile", {"help": "time per execute, its bound, share of the roofs"}),
    "compare": ("--compare", {
        "metavar": ("A", "B"), "nargs": 2,
        "help": "two bundles, cases or kept --profile --json"}),
    "report": ("--report", {"metavar": "FILE", "help": "write the profile as one HTML page"}),
    "roofline": ("--roofline", {"metavar": "FILE", "help": "write the roofline as .svg"}),
    "modelled_trace": ("--modelled-trace", {
        "metavar": "FILE",
        "help": "write modelled time alone as a trace, for Perfetto; --trace has the host's beside "
        "it"}),
    "cost_model": ("--cost-model", {
        "choices": ("calibrated", "ideal"),
        "help": "times as measured on cards (default), or as the hardware's parameters allow"}),
    "machine": ("--machine", {
        "metavar": "FILE", "help": "constants over those of the card (.toml)"}),
    "fit": ("--fit", {
        "metavar": "ROWS.csv", "help": "fit the machine's constants to the measured rows first"}),
    "output": ("-o --output", {
        "metavar": "FILE", "help": "with --fit: write the fitted machine (.toml)"}),
    "csv": ("--csv", {"help": "print the file again, with columns for the modelled times"}),
    "model": ("--model", {
        "metavar": "MODEL",
        "help": "model a whole decoder: granite-3.3-8b, …, a config.json, or its directory"}),
    "cards": ("--cards", {"type": _positive, "help": "that share the model (default 1)"}),
    "batch": ("--batch", {"type": _positive, "help": "sequences (default 1)"}),
    "prompt": ("--prompt", {"type": _positive, "help": "tokens of a prompt (default 512)"}),
    "dtype": ("--dtype", {"choices": ("fp16", "fp8"), "help": "of the linears (default fp16)"}),
    "lx_fraction": ("--lx-fraction", {
        "type": _fraction, "metavar": "PART",
        "help": "of LX that the backend uses, DXP_LX_FRAC_AVAIL (default: the machine's)"}),
    "overlap": ("--overlap", {
        "choices": ("serial", "overlapped", "double-buffered"),
        "help": "which of copies, launches and cores overlap in time (default: as in streams)"}),
}  # fmt: skip
"""Flags and parameters of `argparse` of each option; types and defaults are those of the fields."""
Paths = Literal["?", "rows", 2] | None
"""Number of paths of a command: at most one (``rows``: a CSV file), two, (None) exactly one."""
Groups = dict[str, tuple[str, ...]]
"""Options by the headline of their group in the help, "" for none."""
_ARGUMENTS = ("inputs", "shapes", "strides", "aliases", "values", "function", "seed")
_TENSORS: Groups = {"tensors": ("save_output", *_ARGUMENTS)}
_RUNNING: Groups = {"running": ("numerics", "threads", "sanitize", "poison", "core_order")}
_OUTPUT = ("json", "quiet", "verbose")
_REPORTING: Groups = {"reporting": (*_OUTPUT, "dump", "trace", "commands")}
_MACHINE = ("cost_model", "machine", "overlap")
_MODELLED = ("report", "roofline", "modelled_trace", *_MACHINE)
_SPYRE_RUN: Groups = {
    **_TENSORS,
    "comparison": ("expected", "rtol", "atol", "exact"),
    **_RUNNING,
    "verifying the simulator and its rounding": ("against", "verify", "verify_points"),
    "watching execute by execute": ("expect", "break_at", "tensors", "save_tensors"),
    "instead of running": ("warm", "clear_cache", "check", "explain", "svg"),
    **_REPORTING,
    "modelled time on a card": ("profile", "compare", *_MODELLED),
}
COMMANDS: dict[str, tuple[str, type[CommandOptions], Paths, Groups, dict[str, Any]]] = {
    "check": (
        "Print all errors and warnings about a bundle, without running it.",
        DiagnoseOptions,
        None,
        {
            "": ("values", *_OUTPUT, "format"),
            "which findings": ("fail_on", "select", "ignore", "baseline"),
        },
        {"check": True},
    ),
    "explain": (
        "Describe each SDSC of a bundle, or a diagnostic code.",
        DiagnoseOptions,
        None,
        {"": ("values", *_OUTPUT, "svg")},
        {"explain": True},
    ),
    "profile": (
        "Run a bundle, and model the time of the run on a card and its bounds.",
        ExecuteOptions,
        None,
        {**_TENSORS, **_RUNNING, **_REPORTING, "modelled time on a card": _MODELLED},
        {"profile": True},
    ),
    "compare": (
        "Compare the modelled time of two bundles, cases or saved profiles.",
        CompareOptions,
        2,
        {"": (*_MACHINE, *_OUTPUT)},
        {},
    ),
    "estimate": (
        "Model the times of the kernels in a CSV file, or of a whole model; fit to measured ones.",
        EstimateOptions,
        "rows",
        {
            "": ("machine", "fit", "output", "csv", "json", "quiet"),
            "whole models": ("model", "cards", "batch", "prompt", "dtype", "lx_fraction"),
        },
        {},
    ),
    "warm": (
        "Compile the kernels that a bundle needs, or all of them, for later runs.",
        WarmOptions,
        "?",
        {"tensors": _ARGUMENTS, **_RUNNING, "": _OUTPUT},
        {},
    ),
}
"""Description, options class, paths and options of each command, and what the command implies."""
_DEFAULTS: dict[str, Any] = {
    name: getattr(kind, name)
    for kind in (
        *(ExecuteOptions, DiagnoseOptions, NumericsOptions, CompareOptions, WarmOptions),
        EstimateOptions,
    )
    for name in option_names(kind)
} | {"warm": False, "compare": None, "against": None}
"""Values of options that are not given: where options choose the command, that it is not chosen."""


def make_parser(
    program: str, description: str, paths: Paths, groups: Groups, epilog: str | None = None
) -> CommandParser:
    """A parser of paths and of groups of options."""
    parser = CommandParser(
        prog=program,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    name, text = "path", "bundle directory, its bundle.mlir, a case, or a .ktir file"
    if paths == 2:
        name, text = "compare", "bundle, case or kept spyre profile --json"
    elif paths == "rows":
        paths, text = "?", "CSV file: columns kernel, shapes, dtype, split, cores, microseconds"
    parser.add_argument(name, metavar="PATH", nargs=paths, default="", help=text)
    parser.add_argument("--version", action="version", version=f"{program} {spyre.__version__}")
    for title, names in groups.items():
        group = parser.add_argument_group(title) if title else parser
        for option in names:
            flags, parameters = _ROWS[option]
            default = _DEFAULTS.get(option, False)
            if default is False:
                parameters = {"action": "store_true", **parameters}
            default = [] if default == () else default
            group.add_argument(*flags.split(), dest=option, default=default, **parameters)
    return parser


def _flag(name: str) -> str:
    """The first long flag of an option."""
    flags = ["PATH"] if name == "path" else _ROWS[name][0].split()
    return next((flag for flag in flags if flag.startswith("--")), flags[0])
