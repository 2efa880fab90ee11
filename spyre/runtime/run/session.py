"""Running bundles on one device: read, place, transfer, launch, transfer back, report.

A :class:`Session` keeps what it prepared (bundle, plans, linked programs) by the bundle's content,
so a repeated run only moves data and computes. :func:`run` is the one call for scripts, and
``spyre-run`` is a shell around it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spyre.errors import Finding, Severity, ValidationError
from spyre.hw.counters.counts import Counters
from spyre.hw.counters.launches import ExecuteLabels
from spyre.hw.device.device import Device
from spyre.hw.device.executor import Progress
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.hw.memory.device_memory import DeviceTensor
from spyre.hw.numerics import Numerics
from spyre.hw.spec import STICK_BYTES
from spyre.layout import SpyreTensorLayout
from spyre.runtime.arguments.host_tensor import HostTensor, TensorSpec
from spyre.runtime.arguments.read import Inputs, prepare_inputs, read_arguments
from spyre.runtime.arguments.specs import ArgumentSpec, KernelArguments
from spyre.runtime.compare.outputs import OutputLocation, StickWriter
from spyre.runtime.compare.verification import DEFAULT_VERIFY_POINTS, Verification
from spyre.runtime.flex.blocking_stream import BlockingStream, blocking_stream_of, load_source_on
from spyre.runtime.flex.device import flex_device_of
from spyre.runtime.flex.job import JobPlan
from spyre.runtime.kernel.kernel import Kernel
from spyre.runtime.kernel.launch import Launch, PoolBuffer
from spyre.runtime.kernel.runners import UNLABELLED, BoundKernel, Runner, TimedLaunch, run_timed
from spyre.runtime.program.compiled import KernelSource, read_bundle_files
from spyre.runtime.program.launch_spec import Role
from spyre.runtime.program.plan_cache import load_source
from spyre.runtime.run.result import PlacedArgument, RanLaunch, RunResult, report_executes
from spyre.runtime.run.sanitizing import next_record, observed, take_findings, whole_output

if TYPE_CHECKING:
    from spyre.runtime.compare.reference_check import ReferenceCheck

Allocate = Callable[[int, int], int]
"""(bytes, segment in a baked bundle) → device address."""


@dataclass(frozen=True)
class PlacedArguments:
    """Device tensors by argument index, and the pool where there is one."""

    tensors: dict[int, DeviceTensor]
    pool: PoolBuffer | None


@contextmanager
def placed(device: Device, arguments: KernelArguments, baked: bool) -> Iterator[PlacedArguments]:
    """Allocate everything, and free it again. DeviceOutOfMemory when it does not fit."""
    flex = flex_device_of(device)
    with ExitStack() as held:

        def allocate(size_bytes: int, segment: int) -> int:
            region = segment if baked else None
            storage = held.enter_context(flex.allocate(max(size_bytes, STICK_BYTES), region))
            return flex.allocator.device_address(storage.index)

        yield _place(arguments, allocate)


def _place(arguments: KernelArguments, allocate: Allocate) -> PlacedArguments:
    size, pool = arguments.pool_bytes, None
    if size:
        pool = PoolBuffer(allocate(size, 0), size)
    first = 0 if pool is None else 1
    tensors = {
        spec.arg_index: _device_tensor(
            spec, allocate(spec.layout.device_bytes, spec.arg_index + first)
        )
        for spec in arguments.arguments
    }
    for spec, target in arguments.aliases:
        tensors[spec.arg_index] = _device_tensor(spec, tensors[target].address_bytes)
    return PlacedArguments(tensors, pool)


def _device_tensor(spec: ArgumentSpec, address_bytes: int) -> DeviceTensor:
    return DeviceTensor(
        spec.name, address_bytes, spec.layout, spec.dtype_name, spec.shape, spec.strides
    )


def runner_of(
    timed: bool,
    progress: Progress | None,
    check: ReferenceCheck | None,
    label: ExecuteLabels = UNLABELLED,
) -> Runner | None:
    """How to run a launch: verified by ``check`` if there is one, else timed, else plainly.

    ``label``: how a timed launch numbers its executes.
    """
    if check is not None:
        return _verified(check)
    return _timed(progress, label) if timed else None


def _verified(check: ReferenceCheck) -> Runner:
    def run(kernel: Kernel, bound: BoundKernel) -> Verification:
        return check.run(kernel.link_at(bound.shape, bound.addresses, bound.names))

    return run


def _timed(progress: Progress | None, label: ExecuteLabels) -> Runner:
    def run(kernel: Kernel, bound: BoundKernel) -> TimedLaunch:
        return run_timed(kernel, bound, progress, label)

    return run


BundleLike = KernelSource | str | os.PathLike[str]
MAX_KERNELS = 256
"""Prepared kernels a session keeps; the one used longest ago goes first."""


@dataclass(frozen=True)
class RunOptions:
    """How to run.

    ``seed``: random inputs. ``values``: values of index parameters and runtime sizes, by name.
    ``timed``: take the host time of every execute (one call per execute instead of one in all).
    ``check``: diagnose the bundle first, and refuse one with errors. ``shapes``: host shapes of
    the inputs, in order. ``strides``: host strides (elements) by argument index, where they are
    not row-major. ``aliases``: argument index → index of the argument whose memory it shares, as
    in-place programs have it. ``progress``: called as a timed or verified run goes on. ``verify``:
    run every execute of at most ``verify_points`` points beside the reference implementation.
    """

    seed: int = 0
    values: Mapping[str, int] = field(default_factory=dict)
    timed: bool = False
    check: bool = True
    shapes: Sequence[TensorSpec] = ()
    strides: Mapping[int, Sequence[int]] = field(default_factory=dict)
    aliases: Mapping[int, int] = field(default_factory=dict)
    progress: Progress | None = None
    verify: bool = False
    verify_points: int = DEFAULT_VERIFY_POINTS


@dataclass
class PreparedBundle:
    """A bundle on a device, with what was found out about it so far."""

    kernel: Kernel
    plan: JobPlan
    findings: tuple[Finding, ...] | None = None

    @property
    def bundle(self) -> KernelSource:
        """The bundle, as read or compiled."""
        return self.kernel.bundle

    def check(self) -> tuple[Finding, ...]:
        """All findings, made once. ValidationError when one is an error."""
        if self.findings is None:
            self.findings = self.bundle.check()
        if any(f.severity is Severity.ERROR for f in self.findings):
            raise ValidationError(self.findings)
        return self.findings


class Session:
    """A device with the kernels prepared on it. Driven from one thread at a time."""

    def __init__(self, device: Device | None = None) -> None:
        self.device = device if device is not None else Device()
        self.flex = flex_device_of(self.device)
        self.stream = blocking_stream_of(self.flex)
        self._prepared: OrderedDict[object, PreparedBundle] = OrderedDict()
        self._resets = self.device.resets

    def prepare(self, bundle: BundleLike) -> PreparedBundle:
        """A bundle made ready, once per content (of an object: once per object).

        Compiled plans are taken from the disk cache, and kept there.
        """
        if not isinstance(bundle, (str, os.PathLike)):
            return self._prepare(id(bundle), lambda: bundle)
        files = read_bundle_files(bundle)
        place = os.path.abspath(bundle if files is None else files.directory)
        key = place if files is None else (place, files.module_name, files.digest)
        return self._prepare(key, lambda: load_source(bundle, files))

    def _prepare(self, key: object, load: Callable[[], KernelSource]) -> PreparedBundle:
        if self._resets != self.device.resets:  # what they hold on the device is gone
            self._prepared.clear()
            self._resets = self.device.resets
        if key not in self._prepared:
            source = load()
            kernel = Kernel(source, self.device)
            self._prepared[key] = PreparedBundle(kernel, load_source_on(self.stream, kernel))
            kernel.reserve_scratch()
            if len(self._prepared) > MAX_KERNELS:
                self._prepared.popitem(last=False)[1].kernel.release_scratch()
        self._prepared.move_to_end(key)
        return self._prepared[key]

    def arguments(self, bundle: BundleLike, options: RunOptions | None = None) -> KernelArguments:
        """What the bundle takes and gives under ``options``; checks it first if they say so."""
        options = options or RunOptions()
        prepared = self.prepare(bundle)
        if options.check:
            prepared.check()
        return read_arguments(
            prepared.bundle, options.values, options.shapes, options.strides, options.aliases
        )

    def run(
        self, bundle: BundleLike, inputs: Inputs = None, options: RunOptions | None = None
    ) -> RunResult:
        """Run a bundle once; inputs, options and errors as in :func:`run`."""
        options = options or RunOptions()
        prepared = self.prepare(bundle)
        findings = prepared.check() if options.check else ()
        arguments = self.arguments(bundle, options)
        tensors = prepare_inputs(arguments.inputs, inputs, options.seed)
        baked = not prepared.bundle.program.parameters
        with placed(self.device, arguments, baked) as placement:
            for spec, tensor in zip(arguments.inputs, tensors, strict=True):
                self.stream.to_device(tensor, placement.tensors[spec.arg_index])
            first = next_record(self.device)
            with observed(self.device):
                launched = _launch(self.stream, prepared, placement, options)
            outputs = tuple(
                self.stream.to_host(placement.tensors[spec.arg_index]) for spec in arguments.outputs
            )
            pure = (a.arg_index for a in arguments.outputs if a.role is Role.OUTPUT)
            expected = (whole_output(placement.tensors[index]) for index in pure)
            found = take_findings(self.device, expected, first)
            held = self.device.allocated_bytes
        result = _result(launched, arguments, placement, tensors, outputs, findings)
        return replace(result.with_sanitizer(found), hbm_bytes=held)


@dataclass(frozen=True)
class _Launched:
    """A launch that ran."""

    kernel: Kernel
    launch: Launch
    linked: LinkedProgram
    name: str
    elapsed_ns: npt.NDArray[np.int64] | None = None
    verification: Verification | None = None


def _launch(
    stream: BlockingStream,
    prepared: PreparedBundle,
    placement: PlacedArguments,
    options: RunOptions,
) -> _Launched:
    kernel = prepared.kernel
    launch = Launch(placement.tensors, placement.pool, parameter_values(kernel, options))
    runner = runner_of(options.timed, options.progress, _twin_check(kernel, options))
    detail = stream.launch(prepared.plan, launch, runner)
    linked = kernel.link(launch)
    if isinstance(detail, Verification):
        return _Launched(kernel, launch, linked, prepared.plan.name, verification=detail)
    elapsed = detail.elapsed_ns if isinstance(detail, TimedLaunch) else None
    return _Launched(kernel, launch, linked, prepared.plan.name, elapsed)


def _twin_check(kernel: Kernel, options: RunOptions) -> ReferenceCheck | None:
    if not options.verify:
        return None
    from spyre.runtime.compare.reference_check import ReferenceCheck

    return ReferenceCheck(kernel.device, options.verify_points, options.progress)


def parameter_values(kernel: Kernel, options: RunOptions) -> dict[str, int]:
    """Values for the bundle's parameters; others are runtime sizes of shapes."""
    names = {parameter.name for parameter in kernel.bundle.program.parameters}
    return {name: value for name, value in options.values.items() if name in names}


def _result(
    launched: _Launched,
    arguments: KernelArguments,
    placement: PlacedArguments,
    inputs: tuple[HostTensor, ...],
    outputs: tuple[HostTensor, ...],
    findings: tuple[Finding, ...],
) -> RunResult:
    program = launched.linked.program
    operations = [
        launched.kernel.bundle.operations[execute.sdsc_filename] for execute in program.executes
    ]
    executes = report_executes(launched.linked, operations, launched.elapsed_ns)
    addresses = {k: tensor.address_bytes for k, tensor in placement.tensors.items()}
    return RunResult(
        outputs=tuple(tensor.to_values() for tensor in outputs),
        output_tensors=outputs,
        inputs=inputs,
        executes=executes,
        counters=reduce(add, (report.counters for report in executes), Counters()),
        findings=(*arguments.findings, *findings, *_not_verified(launched)),
        arguments=tuple(PlacedArgument(a, addresses[a.arg_index]) for a in arguments.arguments),
        places=_output_places(launched, arguments, addresses),
        verification=launched.verification,
        launches=(RanLaunch(launched.name, launched.linked),),
    )


def _not_verified(launched: _Launched) -> tuple[Finding, ...]:
    return launched.verification.findings if launched.verification is not None else ()


def _output_places(
    launched: _Launched, arguments: KernelArguments, addresses: Mapping[int, int]
) -> tuple[OutputLocation, ...]:
    places = []
    for spec in arguments.outputs:
        base = addresses[spec.arg_index]
        core_map = partial(_writer_of_stick, launched.linked, spec.layout, base)
        places.append(OutputLocation(spec.layout, spec.shape, spec.strides, base, core_map))
    return tuple(places)


def _writer_of_stick(
    linked: LinkedProgram, layout: SpyreTensorLayout, base_address: int, stick: Sequence[int]
) -> StickWriter | None:
    """See `CoreLookup.writer_of_stick`, which only reports of differences need."""
    from spyre.runtime.compare.outputs import WriterLookup

    return WriterLookup(linked).writer_of_stick(layout, base_address, stick)


def session_of(device: Device) -> Session:
    """The session that keeps the kernels prepared on ``device``.

    It is kept in the device itself: the two refer to each other and end together.
    """
    session: Session = vars(device).get("_session") or Session(device)
    vars(device)["_session"] = session
    return session


def run(
    bundle: BundleLike,
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
) -> RunResult:
    """Run a bundle, given as its directory, its bundle.mlir, a `Bundle` or `CompiledKernel`.

    ``inputs``: numpy arrays or `HostTensor`s for the input arguments (in-place ones included), in
    order or by name or argument index; None: random numbers of ``seed``. ``device``: keeps plans
    and linked programs between runs; without one a fresh device with ``numerics`` and
    ``threads`` is made. The other parameters are those of `RunOptions`. Raises `SpyreError`s:
    BundleError and its kin for the bundle, LaunchError for the inputs, DeviceFault for what the
    card would not survive, MismatchError SPY620 when ``verify`` finds an execute wrong.
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
    return session_of(used).run(bundle, inputs, options)
