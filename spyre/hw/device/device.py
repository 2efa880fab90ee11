"""The simulated card: memory, allocations, host threads, number mode, and the programs it ran.

A Device keeps compiled plans, LX and HBM contents between launches, as the card does. Copies to
different memory may run in several threads, also beside a launch, and memory may be allocated and
freed from several; all else is driven from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from spyre import config
from spyre.errors import LaunchError
from spyre.hw.device.executor import Executor
from spyre.hw.device.threads import shared_pool
from spyre.hw.device.transfer import execute_transfer, plan_transfer
from spyre.hw.memory import (
    KEEP_BYTES,
    DeviceMemory,
    DeviceTensor,
    DirtyRanges,
    MemoryRange,
    RegionAllocator,
)
from spyre.hw.numerics import Numerics, parse_numerics
from spyre.hw.spec import CORES, LX_BASE, LX_BYTES
from spyre.layout import DataConversionInfo

if TYPE_CHECKING:
    from spyre.hw.sanitizer import CheckChoice, Sanitizer


T = TypeVar("T")


class Device:
    """One simulated card.

    ``numerics``: number mode, or its text form (default: SPYRE_NUMERICS). ``threads``: host threads
    (default: SPYRE_NUM_THREADS, else all usable CPUs). ``sanitize``: checks to make (True: all),
    see docs/sanitizer.md. Fresh memory reads as zero, with ``poison`` as 0xAA bytes.
    ``regions``: what is allocated. ``leftovers``: what of the rest is not clear. ``resets``: how
    often it was reset.
    ``core_order``: "random" or "random:SEED" runs the cores of an execute one after another in
    shuffled order.
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
        """The one object of ``kind`` that a higher layer keeps with the card, made when first asked
        for. Card and object refer to each other and end together.
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
        """What allocated memory holds at first: zeros, or poison; hold ``regions.lock``.

        ``uncleared``: or what was left there, in a range of more than KEEP_BYTES.
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
        """Give the host what is kept of free memory."""
        with self.regions.lock:
            self._clear(self.leftovers.take_all())

    def free(self, address_bytes: int) -> None:
        """Release an allocation; its contents are gone."""
        with self.regions.lock:
            self.release(address_bytes)

    def release(self, address_bytes: int, untouched: bool = False, uncleared: bool = False) -> int:
        """`free` for callers that hold ``regions.lock``; returns the bytes released.

        ``untouched``: the caller knows that nobody wrote there, so it need not be cleared.
        ``uncleared``: it may be left as it is, if it is large and nobody watches memory.
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
    """A sanitizer with the checks chosen, loaded only where there are any."""
    if choice is None or choice is False:
        return None
    from spyre.hw.sanitizer import Sanitizer, parse_checks

    checks = parse_checks(choice)
    return Sanitizer(checks) if checks else None


def parse_core_order(text: str | None) -> int | None:
    """Seed of "random" (0) or "random:SEED"; None for None. LaunchError SPY739 for other texts."""
    if text is None:
        return None
    name, _, seed = text.partition(":")
    if name == "random" and (seed.isdigit() or text == "random"):
        return int(seed or 0)
    raise LaunchError(
        "SPY739", "unknown order of cores", expected="random or random:SEED", found=text
    )
