"""`FlexDevice`: a card with allocator, DMA engine, scheduler and streams; the process's cards.

The calls of a card's `BlockingStream` wait, so errors are raised where work is submitted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre import config
from spyre.errors import DeviceOutOfMemory, LaunchError
from spyre.hw.counters import LaunchCounts
from spyre.hw.device import Device
from spyre.hw.memory import TENSOR_REGIONS, AllocationHistory, DeviceTensor
from spyre.interrupts import interrupts
from spyre.layout import SpyreTensorLayout
from spyre.rules import LARGEST, require_type, whole_number
from spyre.runtime.arguments import HostTensor, KernelArguments, read_arguments
from spyre.runtime.dma import DmaEngine, host_like
from spyre.runtime.flex.command_stream import CommandStream
from spyre.runtime.flex.loaded_kernel import LoadedKernel
from spyre.runtime.flex.scheduler import Scheduler, VirtualTime
from spyre.runtime.flex.scheduling import Engine, Policy
from spyre.runtime.flex.steps import (
    JobPlan,
    JobWork,
    LaunchPlan,
    bytes_to_device,
    require_card,
    require_tensors,
    to_device_plan,
    to_host_plan,
)
from spyre.runtime.flex.stream import FlexStream, StreamPool
from spyre.runtime.kernel import ExecutedLaunch, Kernel, Launch, Runner, run_recorded
from spyre.runtime.memory import (
    PROGRAM,
    AllocationDirective,
    DeviceStorage,
    FlexAllocator,
    ProgramMemory,
    SpyreTensor,
    first_device,
    visible_devices,
)
from spyre.runtime.program import digest_of, require_bundle
from spyre.runtime.spyrecode import format_header


class FlexDevice:
    """One card and its flex layer. Usable from any thread.

    ``device``: the simulated hardware (default: a new one). ``index``: its number among the cards
    of the process. ``policy``: how jobs of different streams share it (default: SPYRE_SCHEDULER).
    ``is_blocking``: every submission waits for its end (default: SPYRE_LAUNCH_BLOCKING).
    ``runner``: runs launches in place of the compiled driver. ``prepared``: plans of directories,
    by content.
    """

    def __init__(
        self,
        device: Device | None = None,
        index: int = 0,
        policy: Policy | str | None = None,
        is_blocking: bool | None = None,
    ) -> None:
        self.device = device if device is not None else Device()
        self.index = index
        # Regions that already hold allocations keep their sizes.
        in_use = self.device.regions.in_use
        capacities = self.device.regions.capacities_bytes if in_use else None
        self.allocator = FlexAllocator(self.device, capacities_bytes=capacities)
        self.dma = DmaEngine(self.device)
        chosen = policy if policy is not None else config.SCHEDULER.read()
        self.scheduler = Scheduler(Policy(chosen))
        self.is_blocking = config.launch_blocking() if is_blocking is None else is_blocking
        self.runner: Runner | None = None
        self.streams = StreamPool(self)
        self.prepared: dict[tuple[object, ...], JobPlan] = {}
        self._recorder = threading.Lock()
        self._counter = threading.Lock()

    # --- memory ----------------------------------------------------------------------------------

    def allocate(self, size_bytes: int, region: int | None = None) -> DeviceStorage:
        """Fresh device memory that is freed with its last reference.

        ``region``: preferred region, used if it has room. LaunchError SPY812 for other numbers.
        """
        size_bytes = whole_number("the size in bytes", size_bytes)
        with interrupts:
            index = None
            if region is not None:
                number = whole_number("the region", region, 0, TENSOR_REGIONS - 1)
                with suppress(DeviceOutOfMemory):  # the region is only a preference
                    directive = AllocationDirective(domains=(number,))
                    index = self.allocator.allocate(size_bytes, directive)
            if index is None:
                index = self.allocator.allocate(size_bytes)
            return DeviceStorage(self.allocator, index, size_bytes, self.index)

    def allocate_with_address(self, size_bytes: int, uncleared: bool) -> tuple[DeviceStorage, int]:
        """`allocate` of at least one byte, with its device address; interrupts must be deferred."""
        index, place = self.allocator.allocate_place(size_bytes, uncleared)
        assert isinstance(place, int)
        return DeviceStorage(self.allocator, index, size_bytes, self.index), place

    def allocate_program(self, size_bytes: int) -> ProgramMemory:
        """Fresh program memory (segment 7)."""
        size_bytes = whole_number("the size in bytes", size_bytes, 1)
        with interrupts:
            index = self.allocator.allocate(size_bytes, PROGRAM)
            storage = DeviceStorage(self.allocator, index, size_bytes, self.index)
        return ProgramMemory(storage, self.allocator.device_address(index), size_bytes)

    def empty(
        self,
        shape: tuple[int, ...],
        dtype: str = "float16",
        layout: SpyreTensorLayout | None = None,
        name: str = "tensor",
    ) -> SpyreTensor:
        """A tensor of zeros of torch dtype ``dtype``, in ``layout`` or the default layout."""
        require_type("the shape", shape, tuple, list)
        shape = tuple(whole_number("an extent", extent) for extent in shape)
        require_type("the dtype", dtype, str)
        require_type("the layout", layout, SpyreTensorLayout, type(None))
        layout = layout or SpyreTensorLayout.from_host(shape, dtype)
        return SpyreTensor(name, shape, dtype, layout, self.allocate(layout.device_bytes))

    def to_device(
        self,
        array: npt.NDArray[Any] | HostTensor,
        name: str = "tensor",
        layout: SpyreTensorLayout | None = None,
        stream: FlexStream | None = None,
    ) -> SpyreTensor:
        """A new tensor with the elements of ``array``; the copy is enqueued, on the current stream.

        ``array`` must not change before the copy has run.
        """
        require_type("the array", array, np.ndarray, HostTensor)
        chosen = self._stream(stream)
        host = array if isinstance(array, HostTensor) else HostTensor.from_array(name, array)
        layout = layout or SpyreTensorLayout.from_host(host.shape, host.dtype_name)
        tensor = self.empty(host.shape, host.dtype_name, layout, host.name)
        if tensor.size_bytes:
            chosen.launch(to_device_plan(host, tensor.resolved), [tensor])
        return tensor

    def to_host(self, tensor: SpyreTensor, stream: FlexStream | None = None) -> HostTensor:
        """The tensor's elements on the host; waits for the stream, by default the current one."""
        chosen = self._stream(stream)
        require_tensors(self, [tensor])
        host = host_like(tensor.resolved)
        if tensor.size_bytes:
            chosen.launch(to_host_plan(tensor.resolved, host), [tensor])
        chosen.synchronize()
        return host

    def _stream(self, stream: FlexStream | None) -> FlexStream:
        """``stream``, by default the current one. LaunchError SPY879 for one of another card."""
        if stream is None:
            return self.streams.current
        require_type("the stream", stream, FlexStream)
        require_card(self, stream.device, "the stream", stream)
        return stream

    # --- streams ---------------------------------------------------------------------------------

    @cached_property
    def blocking(self) -> BlockingStream:
        """A stream whose calls wait."""
        return BlockingStream(self)

    @property
    def default_stream(self) -> FlexStream:
        """Stream 0."""
        return self.streams.default

    def synchronize(self) -> None:
        """Return when all work submitted to any stream has ended; raises an error, once."""
        streams = self.streams.handed_out()
        last = [s.queue.last for s in streams]
        self.wait_until(lambda: all(w is None or w.has_ended for w in last))
        for stream in streams:
            stream.report()

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Return once ``done()``, which only reads states.

        An interrupt during a launch is raised here; if streams recover, nowhere else.
        """
        try:
            self.scheduler.wait_until(done)
        except BaseException as interrupt:
            if self.scheduler.recovers:
                for stream in self.streams.handed_out():
                    stream.clear_reported(interrupt)
            raise

    def reset(self) -> None:
        """Drop all queued work and clear the errors of all streams; memory does not change."""
        with self.scheduler.guarded() as state:
            error = RuntimeError("the device was reset")
            state.drop_all([s.queue for s in self.streams.handed_out()], error)
        self.scheduler.wait_until(lambda: self.scheduler.is_idle)

    @contextmanager
    def recording(self) -> Iterator[CommandStream]:
        """Record every control block and allocation during the block.

        Launches run one iteration at a time. Work submitted earlier runs before the block begins,
        and the block's work has run when it ends. One recording at a time.
        """
        with self._recorder:
            self.synchronize()
            self.allocator.collect()
            regions = self.device.regions
            with regions.lock:
                regions.history = history = AllocationHistory(regions.allocated_bytes)
            stream = CommandStream(history)
            self.scheduler.watch(stream.observe)
            try:
                yield stream
                self.synchronize()
                self.allocator.collect()
            finally:
                self.scheduler.watch(None)
                with regions.lock:
                    regions.history = None

    @contextmanager
    def counting(self) -> Iterator[LaunchCounts]:
        """Count data movement and work of the launches in the block.

        Work submitted earlier runs before the block begins, and the block's work has run when it
        ends. One such block at a time.
        """
        executor = self.device.executor
        with self._counter:
            self.synchronize()
            counts = executor.counts = LaunchCounts()
            try:
                yield counts
                self.synchronize()
            finally:
                executor.counts = None

    @contextmanager
    def virtual_time(self, durations: Mapping[Engine, int]) -> Iterator[VirtualTime]:
        """Run the work submitted in the block on the calling thread, in virtual time.

        The yielded object then holds the spans of each engine, as if every step took the duration
        of its engine in ``durations`` (any unit; events read it as nanoseconds). The work is really
        executed, at the end of the block or when the block waits for it. Work submitted earlier
        runs first. One block at a time.
        """
        self.synchronize()
        with self.scheduler.virtual_time(
            lambda unit: durations[unit.work.stages.engines[unit.stage]]
        ) as time:
            yield time

    def close(self) -> None:
        """End the scheduler's threads; the card accepts no more asynchronous work."""
        self.scheduler.close()

    def __repr__(self) -> str:
        return f"FlexDevice({self.index}, {self.scheduler.policy.value})"


def flex_device_of(device: Device) -> FlexDevice:
    """The flex layer of ``device``, created on first use and stored in the device."""
    return device.attached(FlexDevice, lambda: FlexDevice(device))


class BlockingStream:
    """Copies and launches on one card that wait for their end. For one thread at a time."""

    def __init__(self, device: FlexDevice) -> None:
        self.device = device
        self._stream = FlexStream(device, 0)

    def to_device(self, host: HostTensor, tensor: DeviceTensor) -> None:
        """Host tensor → device tensor; errors as of `DmaEngine.to_device`."""
        self._run(to_device_plan(host, tensor))

    def to_host(self, tensor: DeviceTensor, out: HostTensor | None = None) -> HostTensor:
        """Device tensor → ``out``, or a new host tensor; errors as of `DmaEngine.to_host`."""
        target = host_like(tensor) if out is None else out
        self._run(to_host_plan(tensor, target))
        return target

    def write_bytes(self, address_bytes: int, content: npt.NDArray[np.uint8], name: str) -> None:
        """Raw bytes → device memory."""
        self._run(bytes_to_device(content, address_bytes, name))

    def load(self, kernel: Kernel) -> LoadedKernel:
        """Load the program of ``kernel`` on the card; launch it with `launch`.

        Only the header of its binary is copied: the card checks the header, and executes ``kernel``
        itself.
        """
        program = kernel.bundle
        header = format_header(digest_of(program))
        name = program.directory.resolve().name or "bundle"

        def arguments_of(values: Mapping[str, int] | None = None) -> KernelArguments:
            return read_arguments(require_bundle(program, "a launch bound to tensors"), values)

        loaded = LoadedKernel(self.device, name, kernel, arguments_of, header)
        self._run(loaded.load_plan(header))
        return loaded

    def launch(
        self, kernel: LoadedKernel, launch: Launch, runner: Runner | None = None
    ) -> ExecutedLaunch:
        """Run a kernel over tensors in device memory.

        ``runner``: runs it in place of the card's runner and of the compiled driver.
        """
        require_card(self.device, kernel.card, f"kernel {kernel.name}", kernel.card)
        runner = runner or self.device.runner or run_recorded
        plan, is_recorded = LaunchPlan.of(kernel.kernel, launch), self.device.scheduler.is_observed
        executed = self._wait(
            kernel.bind_at(plan, launch.addresses, (), runner, is_corrected=is_recorded)
        )
        assert isinstance(executed, ExecutedLaunch)
        return replace(executed, name=kernel.name)

    def _run(self, plan: JobPlan) -> None:
        self._wait(JobWork(plan, self.device))

    def _wait(self, work: JobWork) -> object:
        self._stream.submit(work)
        try:
            self._stream.synchronize()
        except BaseException:  # errors are sticky; the next call starts with a new stream
            self._stream = FlexStream(self.device, 0)
            raise
        return work.result


class Devices:
    """The visible cards, numbered from 0. Usable from any thread.

    ``cards``: number of the physical card behind each. By default the environment selects the
    cards, and threads begin with the card of LOCAL_RANK.
    """

    def __init__(self, cards: tuple[int, ...] | None = None) -> None:
        self.cards = visible_devices() if cards is None else cards
        self._first = first_device(len(self.cards)) if cards is None else 0
        self._lock = threading.Lock()
        self.made: dict[int, FlexDevice] = {}
        self._watcher: Callable[[FlexDevice], object] | None = None
        self._streams_recover = False
        self._local = threading.local()

    def __len__(self) -> int:
        return len(self.cards)

    def __iter__(self) -> Iterator[FlexDevice]:
        return map(self.__getitem__, range(len(self.cards)))

    def __getitem__(self, index: int) -> FlexDevice:
        """Card ``index``; -1 is the calling thread's current one. LaunchError SPY883 for others."""
        chosen = self.current_index if index == -1 else index
        card = self.made.get(chosen) if type(chosen) is int else None
        if card is not None:
            return card
        chosen = whole_number("the index", chosen, -LARGEST)
        if not 0 <= chosen < len(self.cards):
            message = f"there is no Spyre device {index}"
            expected = f"0 to {len(self.cards) - 1}" if self.cards else "no device is visible"
            hint = "AIU_WORLD_SIZE and SPYRE_DEVICES say which cards are visible"
            raise LaunchError("SPY883", message, expected=expected, found=str(index), hint=hint)
        with self._lock:
            if chosen not in self.made:
                card = FlexDevice(Device(sanitize=config.sanitizer_checks()), chosen)
                card.scheduler.recovers = self._streams_recover
                self.made[chosen] = card
                if self._watcher is not None:
                    self._watcher(self.made[chosen])
            return self.made[chosen]

    def watch(self, watcher: Callable[[FlexDevice], object] | None) -> None:
        """Call ``watcher`` for every existing card and for each card created later.

        It is called under a lock and must not look up cards. One watcher at a time; None ends it.
        """
        with self._lock:
            self._watcher = watcher
            if watcher is None:
                return
            for index in sorted(self.made):
                watcher(self.made[index])

    def let_streams_recover(self) -> None:
        """Let streams recover from errors, on all existing and future cards."""
        with self._lock:
            self._streams_recover = True
            for card in self.made.values():
                card.scheduler.recovers = True

    @property
    def current_index(self) -> int:
        return getattr(self._local, "index", self._first)

    @property
    def current(self) -> FlexDevice:
        """The calling thread's card, created if necessary."""
        return self[self.current_index]

    def set_current(self, index: int) -> int:
        """Make card ``index`` the calling thread's; returns the one before."""
        before = self.current_index
        if index != -1:
            self._local.index = self[index].index
        return before

    @contextmanager
    def using(self, index: int) -> Iterator[FlexDevice]:
        """Card ``index`` as the current one within the block."""
        before = self.set_current(index)
        try:
            yield self.current
        finally:
            self.set_current(before)

    def synchronize(self) -> None:
        """Return when all work submitted to any card has ended; raises the first error, once."""
        with self._lock:
            made = [self.made[k] for k in sorted(self.made)]
        for device in made:
            device.synchronize()


_lock = threading.Lock()
_devices: Devices | None = None


def devices() -> Devices:
    """The cards of this process, as the environment selected them at the first call."""
    global _devices
    if _devices is not None:
        return _devices
    with _lock:
        if _devices is None:
            _devices = Devices()
        return _devices


def made_devices() -> list[FlexDevice]:
    """The cards created so far. Takes no lock, so that a forked child may call it."""
    cards = _devices
    return [] if cards is None else [cards.made[k] for k in sorted(cards.made)]
