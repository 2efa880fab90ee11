"""Running bundles on one device: read, place, transfer, launch, transfer back, report.

A :class:`Session` keeps what it prepared (bundle, plans, linked programs) by the bundle's content,
so a repeated run only moves data and computes. :func:`run` is the one call for scripts, and
``spyre-run`` is a shell around it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from spyre.errors import Finding, Severity, ValidationError
from spyre.hw.counters import ExecuteLabels
from spyre.hw.device import Device, Progress, warm_program
from spyre.hw.linking import LinkedProgram
from spyre.hw.memory import DeviceTensor
from spyre.hw.numerics import Numerics
from spyre.hw.spec import STICK_BYTES
from spyre.layout import SpyreTensorLayout
from spyre.lru_cache import LruCache
from spyre.mlir.program import LoopProgram
from spyre.runtime.arguments import (
    ArgumentSpec,
    HostTensor,
    Inputs,
    KernelArguments,
    TensorSpec,
    prepare_inputs,
    read_arguments,
)
from spyre.runtime.compare import DEFAULT_VERIFY_POINTS, OutputLocation, StickWriter
from spyre.runtime.flex import LoadedKernel, flex_device_of
from spyre.runtime.kernel import (
    UNLABELLED,
    ExecutedLaunch,
    Kernel,
    Launch,
    PoolBuffer,
    Runner,
    timed_runner,
)
from spyre.runtime.program import (
    LoweredBundle,
    Role,
    load_source,
    read_bundle_files,
    require_bundle,
)
from spyre.runtime.run.result import (
    PlacedArgument,
    RunResult,
    next_record,
    observed,
    take_findings,
    whole_output,
)

if TYPE_CHECKING:
    from spyre.runtime.compare import ReferenceCheck

BundleLike = LoweredBundle | str | os.PathLike[str]
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
    ``runner``: makes what runs each launch, in place of these.
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
    runner: Callable[[ExecuteLabels], Runner] | None = None


# --- arguments on the device ------------------------------------------------------------------

Allocate = Callable[[int, int], int]
"""(bytes, segment in a baked bundle) → device address."""


@dataclass(frozen=True)
class PlacedArguments:
    """Device tensors by argument index, and the pool where there is one."""

    tensors: dict[int, DeviceTensor]
    pool: PoolBuffer | None


@contextmanager
def placed(
    device: Device, arguments: KernelArguments, program: LoopProgram
) -> Iterator[PlacedArguments]:
    """Allocate everything, and free it again. DeviceOutOfMemory when it does not fit."""
    flex = flex_device_of(device)
    # A baked bundle's argument gets its own segment when that is free, so that addresses equal
    # those of the files; otherwise any region does, since the kernel relocates.
    is_baked = not program.parameters
    with ExitStack() as storages:

        def allocate(size_bytes: int, segment: int) -> int:
            region = segment if is_baked else None
            storage = storages.enter_context(flex.allocate(max(size_bytes, STICK_BYTES), region))
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


# --- sessions ---------------------------------------------------------------------------------


@dataclass
class PreparedBundle:
    """A bundle loaded on a card, with what was found out about it so far."""

    kernel: LoadedKernel
    findings: tuple[Finding, ...] | None = None

    @property
    def bundle(self) -> LoweredBundle:
        """The bundle, as read or compiled."""
        return require_bundle(self.kernel.kernel.bundle, "a session")

    def check(self) -> tuple[Finding, ...]:
        """All findings, made once. ValidationError when one is an error."""
        if self.findings is None:
            self.findings = self.bundle.check()
        if any(f.severity is Severity.ERROR for f in self.findings):
            raise ValidationError(self.findings)
        return self.findings

    def arguments(self, options: RunOptions) -> KernelArguments:
        """What the bundle takes and gives under ``options``; checks it first if they say so."""
        if options.check:
            self.check()
        return read_arguments(
            self.bundle, options.values, options.shapes, options.strides, options.aliases
        )

    def launch_of(self, placement: PlacedArguments, options: RunOptions) -> Launch:
        """The launch over arguments that were placed."""
        # Other values are runtime sizes that only shapes name.
        names = {parameter.name for parameter in self.bundle.program.parameters}
        values = {name: value for name, value in options.values.items() if name in names}
        return Launch(placement.tensors, placement.pool, values)


class Session:
    """A device with the kernels prepared on it. Driven from one thread at a time."""

    def __init__(self, device: Device | None = None) -> None:
        self.device = device if device is not None else Device()
        self.flex = flex_device_of(self.device)
        self.stream = self.flex.blocking
        self._prepared: LruCache[object, PreparedBundle] = LruCache(MAX_KERNELS, _release)
        self._resets = self.device.resets

    def prepare(self, bundle: BundleLike) -> PreparedBundle:
        """A bundle made ready, once per content (of an object: once per object).

        Compiled plans are taken from the disk cache, and kept there.
        """
        if not isinstance(bundle, (str, os.PathLike)):
            return self._prepare(id(bundle), lambda: bundle)
        files = read_bundle_files(bundle)
        path = os.path.abspath(bundle if files is None else files.directory)
        key = path if files is None else (path, files.module_name, files.digest)
        return self._prepare(key, lambda: load_source(bundle, files))

    def _prepare(self, key: object, load: Callable[[], LoweredBundle]) -> PreparedBundle:
        if self._resets != self.device.resets:  # what they hold on the device is gone
            self._prepared.clear()
            self._resets = self.device.resets
        prepared = self._prepared.get(key)
        if prepared is None:
            kernel = Kernel(load(), self.device)
            prepared = PreparedBundle(self.stream.load(kernel))
            kernel.reserve_scratch()
            self._prepared.put(key, prepared)
        return prepared

    def arguments(self, bundle: BundleLike, options: RunOptions | None = None) -> KernelArguments:
        """What the bundle takes and gives under ``options``; checks it first if they say so."""
        return self.prepare(bundle).arguments(options or RunOptions())

    def run(
        self, bundle: BundleLike, inputs: Inputs = None, options: RunOptions | None = None
    ) -> RunResult:
        """Run a bundle once; inputs, options and errors as in :func:`run`."""
        options = options or RunOptions()
        prepared = self.prepare(bundle)
        return self.launch(prepared, prepared.arguments(options), inputs, options)

    def launch(
        self,
        prepared: PreparedBundle,
        arguments: KernelArguments,
        inputs: Inputs,
        options: RunOptions,
    ) -> RunResult:
        """`run` of a bundle whose ``arguments`` are known: place, copy in, launch, copy out."""
        findings = prepared.check() if options.check else ()
        tensors = prepare_inputs(arguments.inputs, inputs, options.seed)
        runner = launch_runner(self.device, options)
        with placed(self.device, arguments, prepared.bundle.program) as placement:
            launch = partial(prepared.launch_of, placement, options)
            link = partial(prepared.kernel.kernel.link, launch())
            warm_program(self.device, link, is_interpreted=not options.verify)
            self.copy_inputs(arguments, tensors, placement)
            first_record = next_record(self.device)
            with observed(self.device):
                executed = self.stream.launch(prepared.kernel, launch(), runner)
            outputs = tuple(
                self.stream.to_host(placement.tensors[spec.arg_index]) for spec in arguments.outputs
            )
            pure = (a.arg_index for a in arguments.outputs if a.role is Role.OUTPUT)
            expected = (whole_output(placement.tensors[index]) for index in pure)
            sanitizer = take_findings(self.device, expected, first_record)
            hbm_bytes = self.device.allocated_bytes
        result = _result(prepared, executed, arguments, placement, tensors, outputs, findings)
        return replace(result.with_sanitizer(sanitizer), hbm_bytes=hbm_bytes)

    def copy_inputs(
        self,
        arguments: KernelArguments,
        tensors: Sequence[HostTensor],
        placement: PlacedArguments,
    ) -> None:
        """Transfer a tensor per input argument to where it was placed."""
        for spec, tensor in zip(arguments.inputs, tensors, strict=True):
            self.stream.to_device(tensor, placement.tensors[spec.arg_index])


def _release(prepared: PreparedBundle) -> None:
    prepared.kernel.kernel.release_scratch()


# --- ways to run a launch ---------------------------------------------------------------------


def launch_runner(
    device: Device, options: RunOptions, label: ExecuteLabels = UNLABELLED
) -> Runner | None:
    """How ``options`` want a launch run: beside the reference, timed, or (None) plainly.

    ``label``: how its executes are numbered.
    """
    if options.runner is not None:
        return options.runner(label)
    if options.verify:
        from spyre.runtime.compare import ReferenceCheck

        check = ReferenceCheck(device, options.verify_points, options.progress)
        return verified_runner(check, label)
    return timed_runner(options.progress, label) if options.timed else None


def verified_runner(check: ReferenceCheck, label: ExecuteLabels = UNLABELLED) -> Runner:
    """Run a launch beside the reference implementation."""

    def run_verified(device: Device, linked: LinkedProgram) -> ExecutedLaunch:
        device.executor.warm(linked)  # what is verified is compiled
        # A verified launch takes no times: the reference runs in between.
        return ExecutedLaunch(linked, 0, label=label, verification=check.run(linked))

    return run_verified


# --- results ----------------------------------------------------------------------------------


def _result(
    prepared: PreparedBundle,
    executed: ExecutedLaunch,
    arguments: KernelArguments,
    placement: PlacedArguments,
    inputs: tuple[HostTensor, ...],
    outputs: tuple[HostTensor, ...],
    findings: tuple[Finding, ...],
) -> RunResult:
    verification = executed.verification
    not_verified = () if verification is None else verification.findings
    addresses = {k: tensor.address_bytes for k, tensor in placement.tensors.items()}
    return RunResult(
        outputs=tuple(tensor.to_values() for tensor in outputs),
        output_tensors=outputs,
        inputs=inputs,
        findings=(*arguments.findings, *findings, *not_verified),
        arguments=tuple(PlacedArgument(a, addresses[a.arg_index]) for a in arguments.arguments),
        places=_output_places(executed.linked, arguments, addresses),
        verification=verification,
        launches=(executed,),
    )


def _output_places(
    linked: LinkedProgram, arguments: KernelArguments, addresses: Mapping[int, int]
) -> tuple[OutputLocation, ...]:
    places = []
    for spec in arguments.outputs:
        base = addresses[spec.arg_index]
        writer = partial(_writer_of_stick, linked, spec.layout, base)
        places.append(OutputLocation(spec.layout, spec.shape, spec.strides, base, writer))
    return tuple(places)


def _writer_of_stick(
    linked: LinkedProgram, layout: SpyreTensorLayout, base_address: int, stick: Sequence[int]
) -> StickWriter | None:
    """See `WriterLookup.writer_of_stick`, which only reports of differences need."""
    from spyre.runtime.compare import WriterLookup

    return WriterLookup(linked).writer_of_stick(layout, base_address, stick)


# --- one call ---------------------------------------------------------------------------------


def session_of(device: Device) -> Session:
    """The session that keeps the kernels prepared on ``device``, made when first asked for."""
    return device.attached(Session, lambda: Session(device))


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
