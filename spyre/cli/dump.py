"""``--dump DIR``: what was run, as a directory that ``spyre-run DIR`` replays.

The run hands over its case before it launches anything, so there is one to write after a fault.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from spyre.cli.options import Options
from spyre.errors import JsonLocation, LaunchError

if TYPE_CHECKING:
    from spyre.runtime.arguments import HostTensor, KernelArguments
    from spyre.runtime.cases import Case
    from spyre.runtime.compare import Tolerance
    from spyre.runtime.program import LoweredBundle

# What a case says in its own words is not said twice.
_IN_THE_CASE = ("path", "inputs", "expected", "rtol", "atol", "exact", "shapes", "strides", "seed")
_NOT_REPLAYED = frozenset(
    (
        *_IN_THE_CASE,
        "aliases",
        "values",
        "save_output",
        "threads",
        "warm",
        "check",
        "explain",
        "json",
    )
) | {"quiet", "verbose", "dump", "trace", "commands"}
"""Options that a case holds in another form, or that change nothing about what is computed."""


def replayed_options(options: Options) -> dict[str, Any]:
    """The options a replay has to use, where they are not the default."""
    chosen = {f.name: getattr(options, f.name) for f in fields(Options)}
    defaults = Options("")
    return {
        name: value
        for name, value in chosen.items()
        if name not in _NOT_REPLAYED and value != getattr(defaults, name)
    }


def with_recorded(options: Options, recorded: Mapping[str, Any], file: str) -> Options:
    """``options`` with those a case has recorded, where the command line leaves the default.

    LaunchError SPY371 for an option this version does not have.
    """
    try:
        values = msgspec.convert({"path": "", **recorded}, Options)
        unknown = sorted(set(recorded) - {f.name for f in fields(Options)})
        problem = ", ".join(unknown)
    except msgspec.ValidationError as error:
        problem = str(error)
    if problem:
        raise LaunchError(
            "SPY371",
            "the case asks for options that this version does not have",
            JsonLocation(file, "$.run"),
            found=problem,
        )
    on_command_line = replayed_options(options)
    taken = {name: getattr(values, name) for name in recorded if name not in on_command_line}
    return replace(options, **taken)


@dataclass
class Dump:
    """Writes ``directory`` once the run is over; does nothing when that is None."""

    directory: str | None
    _case: Case | None = None
    _extra_files: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """LaunchError SPY380 at once, before anything runs."""
        if self.directory is not None:
            from spyre.runtime.cases import check_dump_directory

            check_dump_directory(Path(self.directory))

    def record(self, case: Case, extra_files: Mapping[str, bytes] | None = None) -> None:
        self._case, self._extra_files = case, extra_files or {}

    def record_run(
        self,
        options: Options,
        numerics: str,
        bundle: LoweredBundle,
        arguments: KernelArguments,
        inputs: tuple[HostTensor, ...] | None,
        expected: Sequence[HostTensor],
        tolerances: Sequence[Tolerance],
    ) -> None:
        """The run of a bundle that is about to begin, as a case."""
        from spyre.runtime.arguments import prepare_inputs
        from spyre.runtime.cases import RecordedRun, launch_spec_file, record_case

        tensors = prepare_inputs(arguments.inputs, inputs, options.seed)
        recorded = replayed_options(replace(options, numerics=numerics))
        run = RecordedRun(
            bundle, arguments, tensors, expected, tolerances, dict(options.values), recorded
        )
        self.record(record_case(run), launch_spec_file(bundle, arguments))

    def write(self, report: Mapping[str, Any]) -> None:
        """Write the case and what became of it."""
        if self.directory is None:
            return
        if self._case is None:
            print(f"spyre-run: nothing to write to {self.directory}: no launch", file=sys.stderr)
            return
        from spyre.runtime.cases import write_dump

        write_dump(self._case, Path(self.directory), report, self._extra_files)
