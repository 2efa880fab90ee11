"""From a SpyreCode directory to a job plan on a card, and launches of such plans.

`prepare_kernel` executes the preparation plan (runtime reference §5): it allocates program memory
and transfers the binary. The execution plan becomes the steps of the job plan.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from spyre.errors import BundleError, JsonLocation, LaunchError, UnsupportedError
from spyre.mlir.bundle_source import MODULE_FILE, BundleFiles
from spyre.rules import require_type
from spyre.runtime.arguments import read_arguments
from spyre.runtime.flex.device import FlexDevice, devices
from spyre.runtime.flex.loaded_kernel import LoadedKernel
from spyre.runtime.flex.steps import NO_VALUES, ExecutionPlan, Job, JobPlan, require_card
from spyre.runtime.flex.stream import FlexStream
from spyre.runtime.kernel import Kernel
from spyre.runtime.memory import SpyreTensor
from spyre.runtime.program import (
    DERIVED_EMITTER,
    SPYRE_CODE_DIRECTORY,
    CompiledBundle,
    load_compiled_files,
)
from spyre.runtime.spyrecode import (
    SPYRECODE_FILE,
    CodeDirectory,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    Direction,
    ExecutionCommand,
    read_code_directory,
    unpack_bundle,
)

if TYPE_CHECKING:
    from spyre.runtime.tiling.tile_plan import TilingOptions

CodePath = str | os.PathLike[str]


def prepare_kernel(
    directory: CodePath, device: FlexDevice | None = None, stream: FlexStream | None = None
) -> JobPlan:
    """The kernel of a SpyreCode directory (or of a bundle directory with one) on ``device``.

    A job on ``stream`` copies its binary; default: current device and stream. BundleError if the
    directory cannot be read, other errors as of `load_code`.
    """
    chosen = device if device is not None else devices().current
    require_type("the directory", directory, str, os.PathLike)
    require_type("the device", chosen, FlexDevice)
    code = read_code_directory(_code_directory(Path(directory)))
    pool_bytes = 0 if code.launch_spec is None else code.launch_spec.pool_size
    return load_code(code, chosen, stream, pool_bytes=pool_bytes).plan


def load_code(
    code: CodeDirectory,
    device: FlexDevice,
    stream: FlexStream | None = None,
    name: str = "",
    pool_bytes: int = 0,
) -> LoadedKernel:
    """Load the program of a SpyreCode directory on ``device``.

    A job on ``stream`` (default: current) copies its binary. ``name``: its name in profiles
    (default: the bundle's). ``pool_bytes``: size of a pool to allocate, for launches without one.
    UnsupportedError SPY885 if the execution plan differs in form from those of spyre-compile,
    BundleError SPY884 if its sizes contradict the program.
    """
    if stream is not None:
        require_type("the stream", stream, FlexStream)
        require_card(device, stream.device, "the stream", stream)
    source = _source(code)
    kernel = Kernel(source, device.device)
    kernel.reserve_scratch()
    binary = code.binaries[0]
    arguments_of = partial(read_arguments, source)
    name = name or source.name
    loaded = LoadedKernel(device, name, kernel, arguments_of, binary, pool_bytes)
    _check_execution_plan(code, loaded)
    (stream if stream is not None else device.streams.current).launch(loaded.load_plan(binary))
    return loaded


def launch_jobplan(
    plan: JobPlan,
    tensors: Sequence[SpyreTensor],
    stream: FlexStream | None = None,
    options: TilingOptions | None = None,
    values: Mapping[str, int] = NO_VALUES,
) -> None:
    """Enqueue a plan over ``tensors`` on ``stream`` (default: current); see `FlexStream.launch`."""
    chosen = stream if stream is not None else devices().current.streams.current
    try:
        chosen.launch(plan, tensors, options, values)
    except AttributeError:
        require_type("the stream", chosen, FlexStream)
        raise


def launch_kernel(
    kernel: JobPlan | ExecutionPlan | CodePath,
    tensors: Sequence[SpyreTensor],
    stream: FlexStream | None = None,
    options: TilingOptions | None = None,
    values: Mapping[str, int] = NO_VALUES,
) -> None:
    """LaunchKernel of the pipeline RFC: enqueue every job of a kernel, and return.

    ``kernel``: a plan, an execution plan, or a directory, which `prepare_kernel` prepares once per
    device and content.
    """
    chosen = stream if stream is not None else devices().current.streams.current
    if isinstance(kernel, ExecutionPlan):
        plans = [job.job_plan for job in kernel]
    elif isinstance(kernel, JobPlan):
        plans = [kernel]
    else:
        require_type("the kernel", kernel, str, os.PathLike)
        require_type("the stream", chosen, FlexStream)
        plans = [_prepared(kernel, chosen)]
    for plan in plans:
        launch_jobplan(plan, tensors, chosen, options, values)


def load_execution_plan(
    directories: Sequence[CodePath], device: FlexDevice | None = None
) -> ExecutionPlan:
    """Load several SpyreCode directories as one execution plan."""
    jobs = []
    for directory in directories:
        plan = prepare_kernel(directory, device)
        jobs.append(Job(plan, _code_directory(Path(directory)) / SPYRECODE_FILE))
    return ExecutionPlan(jobs)


def _prepared(directory: CodePath, stream: FlexStream) -> JobPlan:
    path = _code_directory(Path(directory)).resolve()
    # Compiling the directory again or resetting the card invalidates the plan.
    try:
        stamp = (path / SPYRECODE_FILE).stat().st_mtime_ns
    except OSError:
        stamp = 0  # `prepare_kernel` reports the unreadable file
    device = stream.device
    assert isinstance(device, FlexDevice)
    prepared = device.prepared
    key = (str(path), stamp, device.device.resets)
    if key not in prepared:
        prepared[key] = prepare_kernel(path, device, stream)
    return prepared[key]


def _code_directory(directory: Path) -> Path:
    inside = directory / SPYRE_CODE_DIRECTORY
    return inside if inside.is_dir() else directory


def _source(code: CodeDirectory) -> CompiledBundle:
    """The program in the binary, with the directory's launch spec."""
    if len(code.binaries) != 1:
        raise _unsupported(code, f"{len(code.binaries)} transfers of binaries", "one")
    path = str(code.directory / code.code.init_transfers[0].init_bin_file)
    files = BundleFiles(code.directory, MODULE_FILE, unpack_bundle(code.binaries[0], path))
    kernel = load_compiled_files(files)
    spec = code.launch_spec
    if spec is not None and spec.emitter == DERIVED_EMITTER:
        spec = None
    return replace(kernel, launch_spec=spec)


def _check_execution_plan(code: CodeDirectory, loaded: LoadedKernel) -> None:
    """Check that the steps in the file are those of the program, with the same sizes."""
    commands = code.code.execution
    expected = loaded.plan.num_steps()
    kinds = tuple(type(command) for command in commands)
    shapes = {1: (ComputeOnDevice,), 3: (ComputeOnHost, DataTransfer, ComputeOnDevice)}
    if kinds != shapes[expected]:
        listed = ", ".join(kind.__name__ for kind in shapes[expected])
        raise _unsupported(code, ", ".join(kind.__name__ for kind in kinds), listed)
    _check_pointers(code, commands)
    correction = loaded.correction
    for command in commands:
        if isinstance(command, ComputeOnDevice):
            continue
        size_bytes = command.size_bytes
        if size_bytes != correction.size_bytes:
            raise BundleError(
                "SPY884",
                f"the correction tensor of {loaded.name} has another size than its symbols need",
                _location(code),
                expected=f"{correction.size_bytes} bytes for {len(correction.names)} symbols",
                found=f"{size_bytes} bytes",
            )


def _check_pointers(code: CodeDirectory, commands: Sequence[ExecutionCommand]) -> None:
    begin = code.code.init_transfers[0].dev_ptr
    for command in commands:
        if isinstance(command, ComputeOnDevice) and command.job_bin_ptr != begin:
            raise _unsupported(
                code, f"job_bin_ptr {command.job_bin_ptr:#x}", f"the binary at {begin:#x}"
            )
        if isinstance(command, DataTransfer) and command.direction is not Direction.H2D:
            raise _unsupported(code, "a transfer to the host", "transfers to the device")


def _unsupported(code: CodeDirectory, found: str, expected: str) -> UnsupportedError:
    message = "an execution plan of this form is not simulated"
    return UnsupportedError("SPY885", message, _location(code), expected=expected, found=found)


def _location(code: CodeDirectory) -> JsonLocation:
    return JsonLocation(str(code.directory / SPYRECODE_FILE), "$.JobExecPlan")


class Instruction(msgspec.Struct, frozen=True, eq=False):
    """One unit of work on the card, including its preparation."""

    plan: JobPlan


class Program:
    """An ordered collection of instructions. Change it from one thread at a time."""

    def __init__(self, execution_plan: ExecutionPlan | None = None) -> None:
        jobs = execution_plan.jobs if execution_plan is not None else []
        self.instructions = [Instruction(job.job_plan) for job in jobs]

    def add_instruction(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)

    def remove_instruction(self, instruction: Instruction) -> None:
        """Remove an instruction. LaunchError SPY882 if it is not in the program."""
        if instruction not in self.instructions:
            raise LaunchError(
                "SPY882", "the instruction is not in this program", found=repr(instruction.plan)
            )
        self.instructions.remove(instruction)

    def launch(self, tensors: Sequence[SpyreTensor], stream: FlexStream) -> None:
        """Enqueue all instructions over tensors of exactly the compiled shapes."""
        self._launch(tensors, stream, False)

    def launch_tiled(self, tensors: Sequence[SpyreTensor], stream: FlexStream) -> None:
        """Enqueue all instructions, tile by tile over tensors larger than the compiled shapes."""
        self._launch(tensors, stream, True)

    def _launch(self, tensors: Sequence[SpyreTensor], stream: FlexStream, is_tiled: bool) -> None:
        from spyre.runtime.tiling.tile_plan import TilingOptions

        for instruction in self.instructions:
            stream.launch(instruction.plan, tensors, TilingOptions(allow_tiled_launch=is_tiled))
