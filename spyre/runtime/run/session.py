"""Running on one device: load kernels, place memory, transfer, launch, transfer back, report.

A :class:`Session` keeps loaded kernels (bundle, plans, linked programs) by the bundle's content, so
a repeated run only moves data and computes. :func:`run` is the one call for scripts; ``spyre-run``
calls :meth:`Session.execute`.

Byte counts of a :class:`RunResult` are those of :mod:`spyre.hw.counters.execute`: sums over cores,
times the executions of the execute.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.dtypes import find_host_dtype
from spyre.errors import Finding, SpyreError
from spyre.hw.counters import Counters
from spyre.hw.device import Device, warm_program
from spyre.hw.linking import LinkedProgram
from spyre.hw.memory import TENSOR_REGIONS, DeviceTensor
from spyre.hw.numerics import Numerics
from spyre.hw.spec import STICK_BYTES
from spyre.lru_cache import LruCache
from spyre.runtime.arguments import (
    ArgumentSpec,
    HostTensor,
    Inputs,
    KernelArguments,
    prepare_inputs,
    read_arguments,
)
from spyre.runtime.cases import Case
from spyre.runtime.compare import Comparison, OutputLocation, StickWriter, compare, last_writer
from spyre.runtime.flex import LoadedKernel, flex_device_of
from spyre.runtime.kernel import ExecutedLaunch, Kernel, Launch, PoolBuffer, timed_runner
from spyre.runtime.program import (
    POOL,
    LoweredBundle,
    LoweredProgram,
    Role,
    load_source,
    read_bundle_files,
)
from spyre.runtime.run.runs import (
    DEFAULTS,
    Run,
    RunLaunch,
    RunOptions,
    RunOutput,
    describe_run,
    required_sticks,
    view_of,
    zeroed_storage,
)

if TYPE_CHECKING:
    from spyre.hw.sanitizer import SanitizerFinding
    from spyre.mlir.tiles import KtirProgram
    from spyre.runtime.compare import ExecuteObserver, Verification
    from spyre.runtime.run.tiles import Traces
    from spyre.runtime.tracing import BoolArray


# --- results -------------------------------------------------------------------------------------


class ExecuteReport(msgspec.Struct, frozen=True):
    """One execute statement over all its executions.

    ``shape``: iteration space in elements, e.g. ``mb 512, out 1024``. ``counters``: all
    ``executions`` together. ``host_ns``: time on this machine; None when it was not taken.
    """

    index: int
    sdsc: str
    op: str
    shape: str
    cores: int
    executions: int
    counters: Counters
    host_ns: int | None = None


class PlacedArgument(msgspec.Struct, frozen=True):
    """An argument and its device address in bytes."""

    spec: ArgumentSpec
    address_bytes: int


class RunResult(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Outcome of one run.

    ``outputs``: numbers of the output arguments in launch order, in-place ones included (bfloat16
    and float8 as float32); ``output_tensors``: the same in the argument's dtype. ``inputs``: host
    tensors that were transferred. ``places``: device location of each output, and which core wrote
    it, for `spyre.runtime.compare.outputs`. ``comparisons``: by number, of the outputs that had an
    expected value. ``verification``: how many executes agreed with the reference implementation,
    None without ``verify``. ``sanitizer``: findings of the device's sanitizer, errors first;
    ``findings`` includes them. ``launches``: linked programs with their times; executes are counted
    on first access to `executes`. ``hbm_bytes``: bytes allocated in each region of device memory
    during the run, by other users of the device too.
    """

    outputs: tuple[npt.NDArray[Any], ...]
    output_tensors: tuple[HostTensor, ...]
    inputs: tuple[HostTensor, ...]
    findings: tuple[Finding, ...]
    arguments: tuple[PlacedArgument, ...]
    places: tuple[OutputLocation, ...] = ()
    comparisons: Mapping[int, Comparison] = msgspec.field(default_factory=dict)
    verification: Verification | None = None
    sanitizer: tuple[SanitizerFinding, ...] = ()
    launches: tuple[ExecutedLaunch, ...] = ()
    hbm_bytes: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """True unless an output differs from its expected value."""
        return all(comparison.ok for comparison in self.comparisons.values())

    @cached_property
    def executes(self) -> tuple[ExecuteReport, ...]:
        """A report per execute statement of all launches."""
        return tuple(report for launch in self.launches for report in report_executes(launch))

    @cached_property
    def counters(self) -> Counters:
        """All executes together."""
        return reduce(add, (report.counters for report in self.executes), Counters())

    @property
    def interpreted(self) -> int:
        """Dispatches that ran while their kernels were being compiled."""
        return sum(launch.interpreted for launch in self.launches)

    @property
    def host_ns(self) -> int | None:
        """Host time of all executes together, None when the run was not timed."""
        times = [report.host_ns for report in self.executes]
        return None if any(t is None for t in times) else sum(t for t in times if t is not None)


def report_executes(launch: ExecutedLaunch) -> Iterator[ExecuteReport]:
    """A report per execute statement of a launch, with host times if they were taken."""
    program, label = launch.linked.view, launch.label
    times: list[int | None] = [None] * len(program.statements)
    if launch.elapsed_ns is not None:
        sums = np.zeros(len(program.statements), np.int64)
        np.add.at(sums, program.dispatches.statement, launch.elapsed_ns)
        times = [int(t) for t in sums]
    for statement, host_ns in zip(program.statements, times, strict=True):
        yield ExecuteReport(
            label.first_execute + statement.index,
            label.sdsc(statement.source),
            statement.name,
            statement.shape,
            len(statement.cores),
            statement.counters.executions,
            statement.counters,
            host_ns,
        )


# --- sanitizer findings -----------------------------------------------------------------------


@contextmanager
def observed(device: Device) -> Iterator[None]:
    """Add the sanitizer's findings so far to a SpyreError that leaves this context."""
    try:
        yield
    except SpyreError as error:
        if device.sanitizer is not None:
            findings = (finding.to_finding() for finding in device.sanitizer.take())
            error.observed = (*error.observed, *findings)
        raise


def take_findings(
    device: Device, outputs: Iterable[tuple[DeviceTensor, npt.NDArray[np.bool_]]], first_record: int
) -> tuple[SanitizerFinding, ...]:
    """All findings since the last call, and those on sticks of ``outputs`` that are not written.

    ``outputs``: with the sticks that must be written. ``first_record``: `next_record` before the
    first launch of the run.
    """
    sanitizer = device.sanitizer
    if sanitizer is None:
        return ()
    from spyre.hw.sanitizer import Check, check_cover

    if Check.COVER in sanitizer.checks:
        for output in outputs:
            sanitizer.add(check_cover(*output, sanitizer.shadow, sanitizer.log, first_record))
    return sanitizer.take()


# --- the session ---------------------------------------------------------------------------------

BundleLike = LoweredBundle | str | os.PathLike[str]
MAX_KERNELS = 256
"""Kernels and bundles that a session keeps; the least recently used one is dropped first."""


# --- a run on the device ----------------------------------------------------------------------


class PlacedRun(msgspec.Struct, frozen=True, eq=False):
    """A run whose kernels are loaded and whose buffers are allocated on a device.

    ``tensors`` and ``pools``: device memory by buffer name. ``launches``: kernels with their bound
    arguments, in order.
    """

    device: Device
    run: Run
    tensors: Mapping[str, DeviceTensor]
    pools: Mapping[str, PoolBuffer]
    launches: tuple[tuple[LoadedKernel, Launch], ...]

    def link(self, number: int) -> LinkedProgram:
        """Tables and dispatches of launch ``number``."""
        loaded, launch = self.launches[number]
        return loaded.kernel.link(launch)

    def fill(self) -> tuple[HostTensor, ...]:
        """Transfer the contents of all buffers; returns the host tensors."""
        stream = flex_device_of(self.device).blocking
        transferred = []
        for name, buffer in self.run.buffers.items():
            if buffer.image is not None:
                tensor, image = self.tensors[name], buffer.image().view(np.uint8).ravel()
                stream.write_bytes(tensor.address_bytes, image, name)
            if buffer.content is not None:
                transferred.append(buffer.content())
                stream.to_device(transferred[-1], self.tensors[name])
        return tuple(transferred)

    def read(self, output: RunOutput, dtype: str | None = None) -> HostTensor:
        """Transfer an output to the host, as ``dtype`` (default: ``output.read_as``)."""
        tensor, kind = self.tensors[output.buffer], find_host_dtype(dtype or output.read_as)
        storage = zeroed_storage(tensor.sizes, tensor.strides, kind.storage_dtype)
        host = HostTensor(tensor.name, kind.name, tensor.sizes, tensor.strides, 0, storage)
        flex_device_of(self.device).blocking.to_host(tensor, host)
        if output.view == (tensor.sizes, tensor.strides, 0):
            return host
        return HostTensor.from_array(tensor.name, view_of(storage, output.view).copy(), kind.name)

    def location(self, output: RunOutput) -> OutputLocation:
        """Layout and address of an output, and a look-up of the executes that wrote it."""
        tensor = self.tensors[output.buffer]
        _, view_strides, view_offset = output.view
        return OutputLocation(
            tensor.layout,
            tensor.sizes,
            tensor.strides,
            tensor.address_bytes,
            partial(self._last_writer, tensor),
            view_strides,
            view_offset,
        )

    def expected_outputs(self) -> Iterator[tuple[DeviceTensor, BoolArray]]:
        """Outputs whose memory is undefined before the run, with the sticks that it must write."""
        for output in self.run.outputs:
            spec = self.run.buffers[output.buffer].spec
            if spec is not None and spec.role is Role.OUTPUT:
                sticks = required_sticks(spec, output)
                yield self.tensors[output.buffer], sticks

    def _last_writer(self, tensor: DeviceTensor, stick: Sequence[int]) -> StickWriter | None:
        """The last execute of all launches that wrote a stick; None if that is not known."""
        position = int(np.ravel_multi_index(tuple(stick), tensor.layout.device_size[:-1]))
        address = tensor.address_bytes + STICK_BYTES * position
        for number in reversed(range(len(self.launches))):
            writer = last_writer(self.link(number), address)
            if writer is None:
                return None
            if writer.execute is not None:
                first = self.run.launches[number].label.first_execute
                return replace(writer, execute=writer.execute + first)
        return StickWriter(None)


class Session:
    """A device with the kernels loaded on it. Driven from one thread at a time."""

    def __init__(self, device: Device | None = None) -> None:
        self.device = device if device is not None else Device()
        self.flex = flex_device_of(self.device)
        self._bundles: LruCache[object, LoweredBundle] = LruCache(MAX_KERNELS)
        self._kernels: LruCache[int, LoadedKernel] = LruCache(
            MAX_KERNELS, lambda loaded: loaded.kernel.release_scratch()
        )
        self._resets = self.device.resets
        self._traces: Traces | None = None

    def describe_tiles(
        self,
        program: KtirProgram,
        inputs: Mapping[str, HostTensor | float],
        function: str | None = None,
        check: bool = True,
    ) -> Run:
        """The run of a function of a KTIR program; errors as of `tiles.describe_tiles`."""
        from spyre.runtime.run.tiles import MOST_TRACED, describe_tiles

        if self._traces is None:
            self._traces = LruCache(MOST_TRACED)
        return describe_tiles(program, inputs, function, self.device.numerics, self._traces, check)

    def read(self, bundle: BundleLike) -> LoweredBundle:
        """A bundle, read once per content. Compiled plans are kept in the disk cache."""
        if not isinstance(bundle, (str, os.PathLike)):
            return bundle
        files = read_bundle_files(bundle)
        path = os.path.abspath(bundle if files is None else files.directory)
        key = path if files is None else (path, files.module_name, files.digest)
        return self._bundles.get_or_make(key, lambda: load_source(bundle, files))

    def load(self, bundle: BundleLike | LoweredProgram) -> LoadedKernel:
        """The kernel of a program on the card, loaded once, with its scratch memory reserved."""
        source = self.read(bundle) if isinstance(bundle, (str, os.PathLike)) else bundle
        if self._resets != self.device.resets:  # device memory of the kernels is gone
            self._kernels.clear()
            self._resets = self.device.resets
        loaded = self._kernels.get(id(source))
        if loaded is None:
            kernel = Kernel(source, self.device)
            loaded = self.flex.blocking.load(kernel)
            kernel.reserve_scratch()
            self._kernels.put(id(source), loaded)
        return loaded

    def arguments(self, bundle: BundleLike, options: RunOptions = DEFAULTS) -> KernelArguments:
        """Arguments of a bundle under ``options``, which may ask for its check first."""
        source = self.read(bundle)
        if options.check:
            source.check(raise_on_error=True)
        return read_arguments(
            source, options.values, options.shapes, options.strides, options.aliases
        )

    def describe(self, source: BundleLike | Case, options: RunOptions = DEFAULTS) -> Run:
        """The run of a bundle or case under ``options``; errors as of `describe_run`."""
        described = source if isinstance(source, Case) else self.read(source)
        return describe_run(described, self.read, options)

    def run(
        self, source: BundleLike | Case, inputs: Inputs = None, options: RunOptions = DEFAULTS
    ) -> RunResult:
        """Run a bundle or case once; inputs, options and errors as in :func:`run`."""
        described = self.describe(source, options)
        if not isinstance(source, Case):
            described = described.with_inputs(
                prepare_inputs(described.inputs, inputs, options.seed)
            )
        return self.execute(described, options)

    @contextmanager
    def placed(self, run: Run) -> Iterator[PlacedRun]:
        """Load the kernels of a run and allocate its buffers, which are freed at the end.

        A device that the run resets is reset first. DeviceOutOfMemory if the buffers do not fit.
        """
        if run.resets_device:
            self.device.reset()
        loaded = [self.load(launch.bundle) for launch in run.launches]
        tensors: dict[str, DeviceTensor] = {}
        pools: dict[str, PoolBuffer] = {}
        with ExitStack() as storages:
            for name, buffer in run.buffers.items():
                if buffer.alias_of is not None:
                    continue
                size_bytes = max(buffer.size_bytes, STICK_BYTES)
                region = buffer.region if buffer.region in range(TENSOR_REGIONS) else None
                storage = storages.enter_context(self.flex.allocate(size_bytes, region))
                address = self.flex.allocator.device_address(storage.index)
                if buffer.spec is None:
                    pools[name] = PoolBuffer(address, buffer.size_bytes)
                else:
                    tensors[name] = _device_tensor(buffer.spec, address)
            for name, buffer in run.buffers.items():
                if buffer.alias_of is not None and buffer.spec is not None:
                    address = tensors[buffer.alias_of].address_bytes + buffer.offset_bytes
                    tensors[name] = _device_tensor(buffer.spec, address)
            launches = [_bind(launch, tensors, pools) for launch in run.launches]
            pairs = tuple(zip(loaded, launches, strict=True))
            yield PlacedRun(self.device, run, tensors, pools, pairs)

    def execute(self, run: Run, options: RunOptions) -> RunResult:
        """Place a run, transfer its contents, launch its kernels in order, read and compare."""
        device, observers = self.device, list(options.observers)
        check = None
        if options.verify:
            from spyre.runtime.compare import ReferenceCheck

            check = ReferenceCheck(device)
            if options.verify_points is not None:
                check.limit_points = options.verify_points
            observers.append(check)
        with self.placed(run) as placement:
            warm_program(device, partial(placement.link, 0), is_interpreted=not options.verify)
            inputs = placement.fill()
            first_record = 0 if device.sanitizer is None else device.sanitizer.log.next_record
            with observed(device):
                launched = tuple(
                    self._launch(placement, number, options, observers)
                    for number in range(len(run.launches))
                )
            outputs = tuple(placement.read(output) for output in run.outputs)
            sanitizer = take_findings(device, placement.expected_outputs(), first_record)
            hbm_bytes = device.allocated_bytes
        values = tuple(tensor.to_values() for tensor in outputs)
        verification = None if check is None else check.verification
        found = (*run.findings, *(() if verification is None else verification.findings))
        return RunResult(
            outputs=values,
            output_tensors=outputs,
            inputs=inputs,
            findings=(*found, *(finding.to_finding() for finding in sanitizer)),
            arguments=tuple(
                PlacedArgument(spec, placement.tensors[spec.name].address_bytes)
                for spec in run.arguments
            ),
            places=tuple(placement.location(output) for output in run.outputs),
            comparisons={
                k: compare(values[k], output.expected(), output.tolerance)
                for k, output in enumerate(run.outputs)
                if output.expected is not None
            },
            verification=verification,
            sanitizer=sanitizer,
            launches=launched,
            hbm_bytes=hbm_bytes,
        )

    def _launch(
        self,
        placement: PlacedRun,
        number: int,
        options: RunOptions,
        observers: Sequence[ExecuteObserver],
    ) -> ExecutedLaunch:
        (loaded, launch), label = placement.launches[number], placement.run.launches[number].label
        if self.device.sanitizer is not None:
            self.device.sanitizer.label = label
        runner = None
        if observers:
            from spyre.runtime.compare import stepping_runner

            runner = stepping_runner(observers, label, options.progress)
        elif options.timed:
            runner = timed_runner(options.progress, label)
        executed = self.flex.blocking.launch(loaded, launch, runner)
        return replace(executed, label=label)


def _device_tensor(spec: ArgumentSpec, address_bytes: int) -> DeviceTensor:
    return DeviceTensor(
        spec.name, address_bytes, spec.layout, spec.dtype_name, spec.shape, spec.strides
    )


def _bind(
    launch: RunLaunch, tensors: Mapping[str, DeviceTensor], pools: Mapping[str, PoolBuffer]
) -> Launch:
    """A launch over buffers that are allocated."""
    arguments = {k: tensors[name] for k, name in launch.buffers.items() if k != POOL}
    pool = launch.buffers.get(POOL)
    return Launch(arguments, None if pool is None else pools[pool], launch.values)


# --- one call ---------------------------------------------------------------------------------


def session_of(device: Device) -> Session:
    """The session that keeps the kernels loaded on ``device``, made when first asked for."""
    return device.attached(Session, lambda: Session(device))


def run(
    bundle: BundleLike | Case | KtirProgram,
    inputs: Inputs = None,
    *,
    device: Device | None = None,
    numerics: Numerics | str | None = None,
    threads: int | None = None,
    seed: int = 0,
    values: Mapping[str, int] | None = None,
    strides: Mapping[int, Sequence[int]] | None = None,
    aliases: Mapping[int, int] | None = None,
    timed: bool = False,
    check: bool = True,
    verify: bool = False,
    function: str | None = None,
) -> RunResult:
    """Run a bundle, given as its directory, its bundle.mlir, a `Bundle` or `CompiledBundle`.

    Or run ``function`` of a `KtirProgram`; ``inputs`` are by name: arrays at pointers, numbers.

    ``inputs``: numpy arrays or `HostTensor`s for the input arguments (in-place ones included), in
    order or by name or argument index; None: random numbers of ``seed``. A `Case` from `read_case`
    brings its own inputs and expected outputs; the device is reset before it. ``device``: keeps
    plans and linked programs between runs; without one a fresh device with ``numerics`` and
    ``threads`` is made. The other parameters are those of `RunOptions`. Raises `SpyreError`s:
    BundleError and its kin for the bundle, LaunchError for the inputs, DeviceFault for accesses
    that the card refuses, MismatchError SPY620 when ``verify`` finds an execute wrong. Outputs
    that differ from the expected ones raise nothing: see `RunResult.comparisons`.
    """
    used = device if device is not None else Device(numerics, threads)
    options = RunOptions(
        seed=seed,
        values=values or {},
        timed=timed,
        check=check,
        strides=strides or {},
        aliases=aliases or {},
        verify=verify,
    )
    session = session_of(used)
    from spyre.mlir.tiles import KtirProgram

    if isinstance(bundle, KtirProgram):
        from spyre.runtime.run.tiles import given_values

        given = given_values(inputs or {})  # type: ignore[arg-type]  # arrays or numbers by name
        return session.execute(session.describe_tiles(bundle, given, function, check), options)
    return session.run(bundle, inputs, options)
