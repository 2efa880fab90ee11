"""The simulated card: memory, allocations, host threads, number mode, and the programs it ran.

A Device keeps compiled plans and the contents of LX and HBM between launches, as the card does.
Several threads may copy to different memory, also during a launch, and may allocate and free
memory; everything else is called from one thread at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from spyre import config
from spyre.errors import LaunchError, SpyreError
from spyre.hw.device.executor import Executor
from spyre.hw.device.threads import shared_pool
from spyre.hw.device.transfer import execute_transfer, plan_transfer
from spyre.hw.linking import LinkedProgram
from spyre.hw.memory import (
    KEEP_BYTES,
    DeviceMemory,
    DeviceTensor,
    DirtyRanges,
    MemoryRange,
    RegionAllocator,
)
from spyre.hw.numerics import Numerics, parse_numerics
from spyre.hw.plan_table import KERNEL_NAMES
from spyre.hw.spec import CORES, LX_BASE, LX_BYTES
from spyre.layout import DataConversionInfo, SpyreTensorLayout

if TYPE_CHECKING:
    from spyre.hw.sanitizer import CheckChoice, Sanitizer


T = TypeVar("T")


class Device:
    """One simulated card.

    ``numerics``: number mode, or its text form (default: SPYRE_NUMERICS). ``threads``: host threads
    (default: SPYRE_NUM_THREADS, else all usable CPUs). ``sanitize``: checks to make (True: all),
    see docs/sanitizer.md. Fresh memory reads as zero, with ``poison`` as 0xAA bytes.
    ``core_order``: "random" or "random:SEED" runs the cores of an execute one after another in
    shuffled order. ``regions``: the allocations. ``leftovers``: free ranges that are not cleared.
    ``resets``: number of resets so far.
    """

    def __init__(
        self,
        numerics: Numerics | str | None = None,
        threads: int | None = None,
        *,
        sanitize: CheckChoice = None,
        poison: bool = False,
        core_order: str | None = None,
    ) -> None:
        mode = numerics if numerics is not None else config.NUMERICS.read()
        self.numerics = mode if isinstance(mode, Numerics) else parse_numerics(mode)
        self.threads = threads or config.thread_count()
        self.memory = DeviceMemory()
        self.pool = shared_pool(self.threads)
        self.executor = Executor(self.memory, self.pool)
        self.poison = poison
        self.core_order = parse_core_order(core_order)
        self.sanitizer = _sanitizer(sanitize)
        self.executor.sanitizer = self.memory.observer = self.sanitizer
        self.regions = RegionAllocator()
        self.leftovers = DirtyRanges()
        self.resets = 0
        self._attached: dict[type, object] = {}
        self._poison_scratchpads()

    def attached(self, kind: type[T], make: Callable[[], T]) -> T:
        """The object of ``kind`` that a higher layer attaches to the card, made on first access.

        Card and object refer to each other and are collected together.
        """
        known = self._attached.get(kind)
        if known is None:
            known = self._attached.setdefault(kind, make())
        assert isinstance(known, kind)
        return known

    @property
    def allocated_bytes(self) -> tuple[int, ...]:
        """Bytes allocated in each region of HBM now."""
        with self.regions.lock:
            return self.regions.allocated_bytes

    def allocate(self, size_bytes: int, region: int | None = None) -> int:
        """Address of ``size_bytes`` fresh bytes of HBM; see RegionAllocator.allocate."""
        with self.regions.lock:
            address = self.regions.allocate(size_bytes, region)
            self.make_fresh(address, size_bytes)
        return address

    def make_fresh(self, address_bytes: int, size_bytes: int, uncleared: bool = False) -> None:
        """Fill newly allocated memory with zeros or poison; callers hold ``regions.lock``.

        ``uncleared``: a range of more than KEEP_BYTES may keep its old contents.
        """
        if self.leftovers.size_bytes:
            left = self.leftovers.take(address_bytes, size_bytes)
            if left and (not uncleared or size_bytes <= KEEP_BYTES):
                self._clear(left)
        if self.poison:
            self.memory.poison(address_bytes, size_bytes)

    def _clear(self, ranges: Iterable[MemoryRange]) -> None:
        for address_bytes, size_bytes in ranges:
            self.memory.clear(address_bytes, size_bytes)

    def clear_leftovers(self) -> None:
        """Clear all leftovers and return their pages to the host."""
        with self.regions.lock:
            self._clear(self.leftovers.take_all())

    def free(self, address_bytes: int) -> None:
        """Free an allocation; its contents are lost."""
        with self.regions.lock:
            self.release(address_bytes)

    def release(self, address_bytes: int, untouched: bool = False, uncleared: bool = False) -> int:
        """`free` for callers that hold ``regions.lock``; returns the bytes released.

        ``untouched``: the memory was never written, so it need not be cleared. ``uncleared``: a
        large range need not be cleared, unless memory is poisoned or observed.
        """
        size_bytes = self.regions.free(address_bytes, keep=uncleared)
        watched = self.poison or self.memory.observer is not None
        if uncleared and size_bytes > KEEP_BYTES and not watched:
            self._clear(self.leftovers.add(address_bytes, size_bytes))
        elif uncleared or not untouched or self.poison:
            self.memory.clear(address_bytes, size_bytes)
        return size_bytes

    def reset(self) -> None:
        """Forget all allocations and contents, LX included; compiled plans stay.

        Handles of a FlexAllocator of this device are void from then on.
        """
        with self.regions.lock:
            self.regions.reset()
            self.memory.clear_all()
            self.leftovers.take_all()
            self._poison_scratchpads()
            self.resets += 1

    def _poison_scratchpads(self) -> None:
        if self.poison:
            for core in range(CORES):
                self.memory.poison(LX_BASE + core * LX_BYTES, LX_BYTES)

    def bytes_of(self, tensor: DeviceTensor) -> npt.NDArray[np.uint8]:
        """The tensor's device bytes, as a view of device memory."""
        return self.memory.view(tensor.address_bytes, tensor.size_bytes)

    def upload(
        self,
        tensor: DeviceTensor,
        storage: npt.NDArray[Any],
        dtype: str,
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> DataConversionInfo:
        """Copy a host tensor to the device, with format and layout conversion.

        ``storage``: 1-D, of torch dtype ``dtype``; ``strides``: default those of the layout;
        ``offset``: of the first element. Padding becomes zero. Returns the descriptor; errors as of
        `plan_transfer` and `execute_transfer`.
        """
        info = self._transfer(tensor, storage, dtype, strides, offset, True)
        if self.sanitizer is not None:
            self.sanitizer.written(tensor.address_bytes, tensor.size_bytes, tensor.name)
        return info

    def download(
        self,
        tensor: DeviceTensor,
        storage: npt.NDArray[Any],
        dtype: str,
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> DataConversionInfo:
        """Copy a device tensor to a host tensor; parameters and errors as of `upload`."""
        return self._transfer(tensor, storage, dtype, strides, offset, False)

    def _transfer(
        self,
        tensor: DeviceTensor,
        storage: npt.NDArray[Any],
        dtype: str,
        strides: tuple[int, ...] | None,
        offset: int,
        to_device: bool,
    ) -> DataConversionInfo:
        memory, host_strides = self.bytes_of(tensor), strides or tensor.strides
        extents = (tensor.layout, tensor.sizes, tensor.strides, host_strides)
        plan = plan_transfer(*extents, dtype, self.numerics, to_device)
        return execute_transfer(plan, storage, offset, memory, self.pool)


def _sanitizer(choice: CheckChoice) -> Sanitizer | None:
    """A sanitizer with the checks of ``choice``; None, without loading any code, for no checks."""
    if choice is None or choice is False:
        return None
    from spyre.hw.sanitizer import Sanitizer, parse_checks

    checks = parse_checks(choice)
    return Sanitizer(checks) if checks else None


def parse_core_order(text: str | None) -> int | None:
    """Seed of "random" (0) or "random:SEED"; None for None. LaunchError SPY739 for other texts."""
    if text is None:
        return None
    if found := re.fullmatch(r"random(?::([0-9]{1,18}))?", text):
        return int(found[1] or 0)
    raise LaunchError(
        "SPY739", "unknown order of cores", expected="random or random:SEED", found=text
    )


# --- compilation of driver, copies and kernels in advance -------------------------------------

_COLUMNS = 1024
_ROWS = (1, 512)
"""Rows of tensors that one thread copies, and that several threads copy."""


def warm_transfers(device: Device) -> None:
    """Compile or load the copies between host and ``device``, and its thread pool."""
    from spyre.hw.kernels.parallel_compile import TRANSFER, entry_of

    _ = entry_of(TRANSFER).address  # compiles or loads it
    for rows in _ROWS:
        sizes, strides = (rows, _COLUMNS), (_COLUMNS, 1)
        layout = SpyreTensorLayout.from_host(sizes, "float16")
        storage = np.zeros(rows * _COLUMNS, np.float16)
        address = device.allocate(layout.device_bytes)
        tensor = DeviceTensor("warm", address, layout, "float16", sizes, strides)
        device.upload(tensor, storage, "float16")
        device.download(tensor, storage, "float16")
        device.free(address)


def warm_driver(device: Device) -> None:
    """Compile or load the driver and the code that moves programs, without any kernels."""
    from spyre.hw.kernels.parallel_compile import compile_driver

    device.pool.prepare()
    compile_driver()


def warm_program(
    device: Device, link: Callable[[], LinkedProgram], is_interpreted: bool = True
) -> None:
    """Compile the copies, the driver and the kernels of a program together.

    Nothing is linked if the copies are ready: missing kernels are then compiled when the program is
    linked to run. SpyreErrors of ``link`` are ignored here and raised by that linking.
    ``is_interpreted``: compile in the background if ``device`` can interpret the program meanwhile.
    """
    from spyre.hw.kernels.parallel_compile import TRANSFER, compile_together, entry_of

    if entry_of(TRANSFER).is_ready:
        return
    with suppress(SpyreError):
        linked = link()
        rows = linked.host_dispatch
        if not (is_interpreted and device.executor.is_interpreted(linked, rows, TRANSFER)):
            compile_together([TRANSFER, *(KERNEL_NAMES[kind] for kind in linked.code.kinds)])


def warm_kernels() -> Iterator[str]:
    """Compile or load every kernel; yields the name of each when it is started.

    If compiled kernels can be cached, one process per CPU compiles some of them; this process loads
    them afterwards, and compiles those that failed.
    """
    from spyre.hw.kernels.parallel_compile import JOBS, compile_job, compiled_elsewhere, processes

    is_alone = processes() == 1
    if not is_alone:
        yield from compiled_elsewhere(JOBS)
    for name in JOBS:
        if is_alone:
            yield name
        compile_job(name)
