"""``--dump DIR``: a run as a case directory that ``spyre-run DIR`` replays.

The case is recorded before anything is launched, so that it can be written after a fault too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
from msgspec.structs import replace

from spyre.cli.options import ExecuteOptions
from spyre.errors import JsonLocation, LaunchError

if TYPE_CHECKING:
    from spyre.hw.device import Device
    from spyre.runtime.cases import Case, CaseBuffer, CaseOutput
    from spyre.runtime.run import Run, RunBuffer, RunOutput

# A case records these in other keys, or they do not change the computation.
_NOT_REPLAYED = frozenset(
    ("path", "inputs", "expected", "rtol", "atol", "exact", "shapes", "strides", "seed", "aliases")
) | {"values", "save_output", "threads", "json", "quiet", "verbose", "dump", "trace", "commands"}


def replayed_options(options: ExecuteOptions) -> dict[str, Any]:
    """The options that a replay has to use, if they are not the default."""
    return {
        name: value
        for name, value in vars(options).items()
        if name not in _NOT_REPLAYED and value != getattr(ExecuteOptions, name)
    }


def with_recorded(
    options: ExecuteOptions, recorded: Mapping[str, Any], file: str
) -> ExecuteOptions:
    """``options`` with those recorded in a case, unless the command line gives others.

    LaunchError SPY371 for an option that this version does not have.
    """
    kinds = get_type_hints(ExecuteOptions)
    problem = ", ".join(sorted(recorded.keys() - kinds.keys()))
    values = {}
    for name, value in recorded.items() if not problem else ():
        try:
            values[name] = msgspec.convert(value, kinds[name])
        except msgspec.ValidationError as error:
            problem = f"{error} - at `$.{name}`"
    if problem:
        raise LaunchError(
            "SPY371",
            "the case asks for options that this version does not have",
            JsonLocation(file, "$.run"),
            found=problem,
        )
    on_command_line = replayed_options(options)
    return options.replaced(**(values | on_command_line))


class Dump(msgspec.Struct):
    """Writes ``directory`` at the end of the run."""

    directory: str
    _case: Case | None = None
    _extra_files: Mapping[str, bytes] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """LaunchError SPY380 at once, before anything runs."""
        from spyre.runtime.cases import check_dump_directory

        check_dump_directory(Path(self.directory))

    def record_case(self, case: Case, options: ExecuteOptions, device: Device) -> None:
        """Keep a case that is about to be replayed."""
        self._case = _with_options(case, options, device)

    def record_bundle(self, run: Run, options: ExecuteOptions, device: Device) -> None:
        """Keep the run of a bundle that is about to begin, as a case."""
        self._case = _with_options(case_of_run(run), options, device)
        self._extra_files = _launch_spec_file(run)

    def write(self, report: Mapping[str, Any]) -> None:
        """Write the case and the report of its run or its error."""
        if self._case is None:
            print(f"spyre-run: nothing to write to {self.directory}: no launch", file=sys.stderr)
            return
        from spyre.runtime.cases import write_dump

        write_dump(self._case, Path(self.directory), report, self._extra_files)


def _with_options(case: Case, options: ExecuteOptions, device: Device) -> Case:
    """The case with the options that a replay is to use."""
    recorded = replayed_options(options.replaced(numerics=str(device.numerics)))
    return replace(case, spec=msgspec.structs.replace(case.spec, run=recorded))


# --- the case of a run ------------------------------------------------------------------------


def case_of_run(run: Run) -> Case:
    """The case of a bundle's run, whose replay places, launches and compares in the same way."""
    from spyre.runtime.cases import Case, CaseFile, CaseLaunch
    from spyre.runtime.compare import EXACT

    (launch,) = run.launches
    arrays = {
        name: buffer.content().to_array()
        for name, buffer in run.buffers.items()
        if buffer.content is not None
    }
    for output in run.outputs:
        if output.expected is not None:
            arrays[f"expect_{output.buffer}"] = output.expected()
    spec = CaseFile(
        run.name,
        EXACT,
        {name: _case_buffer(buffer) for name, buffer in run.buffers.items()},
        (
            CaseLaunch(
                ".", tuple(launch.buffers.values()), tuple(launch.buffers), dict(launch.values)
            ),
        ),
        tuple(_case_output(output) for output in run.outputs),
    )
    return Case(launch.bundle.directory, spec, arrays, {})


def _case_buffer(buffer: RunBuffer) -> CaseBuffer:
    from spyre.runtime.cases import CaseBuffer

    spec = buffer.spec
    if spec is None:
        return CaseBuffer("pool", buffer.size_bytes, region=buffer.region)
    return CaseBuffer(
        kind=spec.role.value,
        nbytes=buffer.size_bytes,
        dtype=spec.dtype_name,
        shape=spec.shape,
        stride=spec.strides,
        layout=spec.layout,
        dma_sizes=spec.shape,
        dma_strides=spec.strides,
        value=None if buffer.content is None else buffer.name,
        region=buffer.region,
        alias_of=buffer.alias_of,
    )


def _case_output(output: RunOutput) -> CaseOutput:
    from spyre.runtime.cases import CaseOutput

    is_compared = output.expected is not None
    return CaseOutput(
        output.buffer,
        output.buffer if is_compared else None,
        *output.view,
        output.read_as,
        output.read_as,
        output.tolerance if is_compared else None,
    )


def _launch_spec_file(run: Run) -> dict[str, bytes]:
    """A launch_spec.json for a bundle that has none."""
    from spyre.runtime.arguments import KernelArguments, given_launch_spec, spec_of_arguments
    from spyre.runtime.program import LAUNCH_SPEC_FILE, POOL, format_launch_spec

    (launch,) = run.launches
    if given_launch_spec(launch.bundle) is not None:
        return {}
    pool = launch.buffers.get(POOL)
    pool_bytes = 0 if pool is None else run.buffers[pool].size_bytes
    specs = tuple(buffer.spec for buffer in run.buffers.values() if buffer.spec is not None)
    arguments = KernelArguments(specs, pool_bytes)
    symbolic = bool(launch.bundle.program.parameters)
    spec = spec_of_arguments(arguments, run.name, symbolic)
    return {LAUNCH_SPEC_FILE: format_launch_spec(spec).encode()}
