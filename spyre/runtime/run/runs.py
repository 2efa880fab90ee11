"""A run: kernels in launch order with the device memory they use, made from a bundle or a case.

A `Run` is a description that needs no device: running, number-mode comparison, address checks,
pictures and the search for the first wrong execute all start from it. Nothing here imports numba.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.dtypes import FORMATS, find_host_dtype
from spyre.errors import Finding, LaunchError
from spyre.hw.counters import UNLABELLED, ExecuteLabels
from spyre.layout import occupied_sticks, viewed_sticks
from spyre.runtime.arguments import (
    ArgumentSpec,
    HostTensor,
    KernelArguments,
    TensorSpec,
    read_arguments,
)
from spyre.runtime.cases import Case, CaseBuffer, CaseOutput
from spyre.runtime.compare import EXACT, Tolerance
from spyre.runtime.program import POOL, LoweredBundle, LoweredProgram, Role, require_bundle
from spyre.runtime.tracing import MemoryExecute, WalkedMemory, trace_executes

if TYPE_CHECKING:
    from spyre.hw.device import Progress
    from spyre.runtime.compare import ExecuteObserver

Array = npt.NDArray[Any]
LoadBundle = Callable[[Path], LoweredBundle]
TensorView = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shape, strides and offset of a view of a tensor's storage, in elements."""
POOL_NAME = "pool"
_ROLES = {"input": Role.INPUT, "output": Role.OUTPUT}
"""Roles by the kind of a case's buffer; other buffers may be read and written."""
_EXACT_DTYPES = ("bool", "int64", "int32")


class RunOptions(msgspec.Struct, frozen=True):
    """How to run.

    ``seed``: of random inputs. ``values``: values of index parameters and runtime sizes, by name.
    ``timed``: measure the host time of each execute (one call per execute instead of one in all).
    ``check``: diagnose the bundle first, and refuse one with errors. ``shapes``: host shapes of
    the inputs, in order. ``strides``: host strides (elements) by argument index, where they are
    not row-major. ``aliases``: argument index → index of the argument whose memory it shares, as
    in-place programs have it. ``progress``: called during a timed, verified or observed run.
    ``verify``: run every execute of at most ``verify_points`` points (None: 2**23) on the
    reference implementation too. ``observers``: called before and after every execute.
    """

    seed: int = 0
    values: Mapping[str, int] = msgspec.field(default_factory=dict)
    timed: bool = False
    check: bool = True
    shapes: Sequence[TensorSpec] = ()
    strides: Mapping[int, Sequence[int]] = msgspec.field(default_factory=dict)
    aliases: Mapping[int, int] = msgspec.field(default_factory=dict)
    progress: Progress | None = None
    verify: bool = False
    verify_points: int | None = None
    observers: Sequence[ExecuteObserver] = ()


DEFAULTS = RunOptions()


class RunBuffer(msgspec.Struct, frozen=True, eq=False):
    """Device memory of a run: a tensor, or (without ``spec``) the pool.

    ``region``: memory region to allocate it in if that has room. ``alias_of``: name of the buffer
    whose memory it shares, from byte ``offset_bytes`` of it on. ``image``: makes the raw bytes that
    are copied to the device first; ``content``: makes the host tensor that is transferred
    afterwards. ``view``: the content as the compiled function sees it, where that is not the whole
    tensor. ``is_input``: the content is an input of the function.
    """

    name: str
    size_bytes: int
    spec: ArgumentSpec | None = None
    region: int | None = None
    alias_of: str | None = None
    image: Callable[[], Array] | None = None
    content: Callable[[], HostTensor] | None = None
    view: TensorView | None = None
    is_input: bool = False
    offset_bytes: int = 0

    @property
    def function_input(self) -> Array:
        """Numbers of the content, in the shape that the compiled function has."""
        assert self.content is not None
        tensor = self.content()
        if self.view is not None:
            shape, strides, offset = self.view
            tensor = replace(tensor, shape=shape, strides=strides, storage_offset=offset)
        return tensor.to_values()


class RunLaunch(msgspec.Struct, frozen=True):
    """One launch: a kernel, names of its buffers by argument index (or POOL), parameter values.

    ``label``: number of its first execute statement among those of the run, and the bundle's
    directory inside a case.
    """

    bundle: LoweredProgram
    buffers: Mapping[int, str]
    values: Mapping[str, int]
    label: ExecuteLabels = UNLABELLED


class RunOutput(msgspec.Struct, frozen=True, eq=False):
    """An output: a view of a buffer. ``read_as``: dtype it is transferred to.

    ``expected``: makes the array to compare with, None where none is known; ``tolerance``: limits
    of that comparison.
    """

    buffer: str
    view: TensorView
    read_as: str
    expected: Callable[[], Array] | None = None
    tolerance: Tolerance = EXACT


class Run(msgspec.Struct, frozen=True, eq=False):
    """Launches in order with their memory. ``buffers``: in allocation order.

    ``findings``: warnings of the check and of the arguments. ``is_derived``: the layouts come from
    the program's own addresses, since there is no launch_spec.json. ``resets_device``: the device
    is reset before the run.
    """

    name: str
    buffers: Mapping[str, RunBuffer]
    launches: tuple[RunLaunch, ...]
    outputs: tuple[RunOutput, ...]
    findings: tuple[Finding, ...] = ()
    is_derived: bool = False
    resets_device: bool = False

    @property
    def arguments(self) -> tuple[ArgumentSpec, ...]:
        """Arguments in order, without aliases."""
        specs = ((b.spec, b.alias_of) for b in self.buffers.values())
        return tuple(spec for spec, alias in specs if spec is not None and alias is None)

    @property
    def inputs(self) -> tuple[ArgumentSpec, ...]:
        """Arguments of a bundle that need a host tensor."""
        return tuple(spec for spec in self.arguments if spec.is_input)

    @property
    def output_arguments(self) -> tuple[ArgumentSpec, ...]:
        """Argument of each output."""
        specs = (self.buffers[output.buffer].spec for output in self.outputs)
        return tuple(spec for spec in specs if spec is not None)

    def with_inputs(self, tensors: Sequence[HostTensor]) -> Run:
        """The run with a host tensor per argument of `inputs`."""
        buffers = dict(self.buffers)
        for spec, tensor in zip(self.inputs, tensors, strict=True):
            buffers[spec.name] = replace(buffers[spec.name], content=partial(_same, tensor))
        return replace(self, buffers=buffers)

    def with_expected(self, tensors: Sequence[HostTensor], tolerances: Sequence[Tolerance]) -> Run:
        """The run with an expected tensor and its tolerance per output."""
        outputs = tuple(
            replace(output, expected=tensor.to_values, tolerance=tolerance)
            for output, tensor, tolerance in zip(self.outputs, tensors, tolerances, strict=True)
        )
        return replace(self, outputs=outputs)


def _same(tensor: HostTensor) -> HostTensor:
    return tensor


def describe_run(
    source: LoweredProgram | Case, load: LoadBundle | None = None, options: RunOptions = DEFAULTS
) -> Run:
    """The run of a case, or of a bundle launched once.

    ``load``: reads the bundles of a case. Of the options, those of `read_arguments` apply to a
    bundle; with ``check``, ValidationError for a bundle with errors. LaunchErrors of reading the
    arguments; UnsupportedError SPY889 for a program that is not a bundle.
    """
    if isinstance(source, Case):
        assert load is not None
        return _run_of_case(source, load, options.check)
    bundle = require_bundle(source, "a run or a check of addresses")
    findings = bundle.check(raise_on_error=True) if options.check else ()
    arguments = read_arguments(
        bundle, options.values, options.shapes, options.strides, options.aliases
    )
    return _run_of_bundle(bundle, arguments, options.values, findings)


# --- of a bundle ------------------------------------------------------------------------------


def _run_of_bundle(
    bundle: LoweredBundle,
    arguments: KernelArguments,
    values: Mapping[str, int],
    findings: tuple[Finding, ...],
) -> Run:
    # An argument of a baked bundle is allocated in its own segment if that is free, so that
    # addresses equal those in the files. In other bundles the kernel relocates.
    is_baked = not bundle.program.parameters
    buffers: dict[str, RunBuffer] = {}
    by_index: dict[int, str] = {}
    if arguments.pool_bytes:
        region = 0 if is_baked else None
        buffers[POOL_NAME] = RunBuffer(POOL_NAME, arguments.pool_bytes, region=region)
        by_index[POOL] = POOL_NAME
    first = len(buffers)
    for spec in arguments.arguments:
        region = spec.arg_index + first if is_baked else None
        buffers[spec.name] = RunBuffer(
            spec.name, spec.layout.device_bytes, spec, region, is_input=spec.is_input
        )
        by_index[spec.arg_index] = spec.name
    for spec, target in arguments.aliases:
        buffers[spec.name] = RunBuffer(
            spec.name, spec.layout.device_bytes, spec, alias_of=by_index[target]
        )
        by_index[spec.arg_index] = spec.name
    # Other values are runtime sizes that only shapes name.
    names = {parameter.name for parameter in bundle.program.parameters}
    launch_values = {name: value for name, value in values.items() if name in names}
    outputs = (
        RunOutput(spec.name, (spec.shape, spec.strides, 0), spec.dtype_name)
        for spec in arguments.outputs
    )
    return Run(
        bundle.directory.resolve().name,
        buffers,
        (RunLaunch(bundle, by_index, launch_values),),
        tuple(outputs),
        (*arguments.findings, *findings),
        arguments.is_derived,
    )


# --- of a case --------------------------------------------------------------------------------


def _run_of_case(case: Case, load: LoadBundle, check: bool) -> Run:
    bundles: dict[str, LoweredBundle] = {}
    findings: list[Finding] = []
    for name in dict.fromkeys(launch.bundle for launch in case.spec.launches):
        bundles[name] = load(case.directory / name)
        findings += bundles[name].check(raise_on_error=True) if check else ()
    numbers = iter(range(len(case.spec.buffers)))
    buffers = {
        name: _case_buffer(case, name, buffer, numbers)
        for name, buffer in case.spec.buffers.items()
    }
    launches: list[RunLaunch] = []
    first = 0
    for spec in case.spec.launches:
        bundle = bundles[spec.bundle]
        by_index = {
            index if buffers[name].spec is not None else POOL: name
            for name, index in zip(spec.args, spec.arg_index, strict=True)
        }
        launches.append(RunLaunch(bundle, by_index, spec.values, ExecuteLabels(first, spec.bundle)))
        first += len(bundle.program.executes)
    outputs = tuple(_case_output(case, output) for output in case.spec.outputs)
    found = tuple(dict.fromkeys(findings))
    return Run(case.spec.name, buffers, tuple(launches), outputs, found, resets_device=True)


def _case_buffer(case: Case, name: str, buffer: CaseBuffer, numbers: Iterator[int]) -> RunBuffer:
    if buffer.layout is None:
        return RunBuffer(name, buffer.nbytes, region=buffer.region)
    layout = buffer.layout
    # Aliases are not separate arguments, so they take no number.
    number = next(numbers) if buffer.alias_of is None else -1
    role = _ROLES.get(buffer.kind, Role.INPUT_OUTPUT)
    sizes, strides = buffer.dma_sizes, buffer.dma_strides
    spec = ArgumentSpec(number, name, role, sizes, buffer.dtype, layout, strides)
    image, content = buffer.device_image, buffer.value
    return RunBuffer(
        name,
        layout.device_bytes,
        spec,
        buffer.region,
        buffer.alias_of,
        None if image is None else partial(case.image, image),
        None if content is None else partial(_host_tensor, case, name, buffer, content),
        buffer.host_view,
        is_input=buffer.kind in ("input", "input_output") and content is not None,
    )


def _host_tensor(case: Case, name: str, buffer: CaseBuffer, key: str) -> HostTensor:
    """Recorded host data in the extents that are transferred. LaunchError SPY371 or SPY382."""
    array, view = case.value(key), buffer.host_view
    storage = zeroed_storage(buffer.dma_sizes, buffer.dma_strides, array.dtype)
    view_of(storage, view)[...] = array.reshape(view[0])
    dtype = buffer.host.dtype or buffer.dtype
    return HostTensor(name, dtype, buffer.dma_sizes, buffer.dma_strides, 0, storage)


def is_float(spec: ArgumentSpec) -> bool:
    """True for a tensor of 16- or 32-bit floats on the device; booleans are stored as such too."""
    floats = FORMATS[spec.layout.device_dtype].computed
    return floats and find_host_dtype(spec.dtype_name).name != "bool"


def _case_output(case: Case, output: CaseOutput) -> RunOutput:
    kind = find_host_dtype(output.dtype)
    is_read_wide = FORMATS[kind.device_format].computed and kind.name != "bool"
    return RunOutput(
        output.buffer,
        (output.shape, output.stride, output.storage_offset),
        output.read_as or ("float32" if is_read_wide else kind.name),
        None if output.value is None else partial(_expected, case, output),
        EXACT if output.dtype in _EXACT_DTYPES else output.tolerance or case.spec.tolerance,
    )


def _expected(case: Case, output: CaseOutput) -> Array:
    values = case.value(f"expect_{output.value}")
    return values if output.read_as else values.reshape(output.shape)


# --- host storage -----------------------------------------------------------------------------


def zeroed_storage(
    sizes: Sequence[int], strides: Sequence[int], dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Zeroed 1-D host storage of a tensor. LaunchError SPY382 if there is no memory for it."""
    elements = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    try:
        return np.zeros(max(elements, 0), dtype)
    except MemoryError as error:
        raise LaunchError(
            "SPY382", "no memory for a buffer of the case", found=f"{elements} elements"
        ) from error


def view_of(storage: Array, view: TensorView) -> Array:
    """The view of 1-D host storage. LaunchError SPY371 if it exceeds the storage."""
    shape, strides, offset = view
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if not 0 <= offset <= last < storage.size:
        message = "a view in the case exceeds its buffer"
        expected = f"elements 0 to {storage.size - 1}"
        found = f"elements {offset} to {last}"
        raise LaunchError("SPY371", message, expected=expected, found=found)
    steps = tuple(s * storage.itemsize for s in strides)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)


# --- memory for address checks ----------------------------------------------------------------


def traced_executes(run: Run) -> tuple[MemoryExecute, ...]:
    """The executes of all launches, with their memory. LaunchErrors as of `trace_executes`."""
    owned = {name: _walked_memory(run, buffer) for name, buffer in run.buffers.items()}
    memories = {name: owned[buffer.alias_of or name] for name, buffer in run.buffers.items()}
    return tuple(
        traced
        for launch in run.launches
        for traced in trace_executes(
            require_bundle(launch.bundle, "a check of addresses"),
            {
                POOL: WalkedMemory("the pool"),
                **{index: memories[name] for index, name in launch.buffers.items()},
            },
            launch.values,
            launch.label,
        )
    )


def _walked_memory(run: Run, buffer: RunBuffer) -> WalkedMemory:
    if buffer.spec is None:
        return WalkedMemory("the pool", buffer.size_bytes)
    required = None
    outputs = [output for output in run.outputs if output.buffer == buffer.name]
    if buffer.spec.role is Role.OUTPUT and outputs:
        sticks = [required_sticks(buffer.spec, output).ravel() for output in outputs]
        required = np.any(sticks, axis=0)
    return WalkedMemory(buffer.name, buffer.size_bytes, buffer.spec.layout, required)


def required_sticks(spec: ArgumentSpec, output: RunOutput) -> npt.NDArray[np.bool_]:
    """True for each stick of an argument from which an output is read."""
    extents = (spec.layout, spec.shape, spec.strides)
    if prod(output.view[0]) == prod(spec.shape):
        return occupied_sticks(*extents)
    return viewed_sticks(*extents, output.view)
