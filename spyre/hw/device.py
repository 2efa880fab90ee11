"""The simulated card: memory, allocations, host threads, number mode, and the programs it ran.

A Device keeps compiled plans, LX and HBM contents between launches, as the card does. Copies to
different memory may run in several threads, also beside a launch, and memory may be allocated and
freed from several; all else is driven from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spyre import config
from spyre.hw.core_order import parse_core_order
from spyre.hw.executor import Executor
from spyre.hw.leftovers import Leftovers, Range
from spyre.hw.memory import KEEP_BYTES, DeviceMemory
from spyre.hw.numerics import Numerics, parse_numerics
from spyre.hw.regions import RegionAllocator
from spyre.hw.spec import CORES, LX_BASE, LX_BYTES
from spyre.hw.threads import shared_pool
from spyre.hw.transfer import HostView, copy_to_device, copy_to_host
from spyre.layout import DataConversionInfo, SpyreTensorLayout

if TYPE_CHECKING:
    from spyre.hw.sanitizer.checks import Choice
    from spyre.hw.sanitizer.sanitizer import Sanitizer


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """A tensor in device memory.

    ``address_bytes``: where its first stick lies in HBM. ``sizes``/``strides`` (elements): the
    host extents its layout was made for. ``dtype``: torch dtype name.
    """

    name: str
    address_bytes: int
    layout: SpyreTensorLayout
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes it occupies on the device."""
        return self.layout.device_bytes


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
        sanitize: Choice = None,
        poison: bool = False,
        core_order: str | None = None,
    ) -> None:
        chosen = numerics if numerics is not None else config.NUMERICS.read()
        self.numerics = chosen if isinstance(chosen, Numerics) else parse_numerics(chosen)
        self.threads = threads or config.thread_count()
        self.memory = DeviceMemory()
        self.pool = shared_pool(self.threads)
        self.executor = Executor(self.memory, self.pool)
        self.poison = poison
        self.core_order = parse_core_order(core_order)
        self.sanitizer = _sanitizer(sanitize)
        self.executor.sanitizer = self.memory.observer = self.sanitizer
        self.regions = RegionAllocator()
        self.leftovers = Leftovers()
        self.resets = 0
        self._poison_scratchpads()

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
        if self.leftovers:
            left = self.leftovers.take(address_bytes, size_bytes)
            if not uncleared or size_bytes <= KEEP_BYTES:
                self._clear(left)
        if self.poison:
            self.memory.poison(address_bytes, size_bytes)

    def _clear(self, ranges: Iterable[Range]) -> None:
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
        size_bytes = self.regions.size_of(address_bytes)
        watched = self.poison or self.memory.observer is not None
        if uncleared and size_bytes > KEEP_BYTES and not watched:
            self._clear(self.leftovers.add(address_bytes, size_bytes))
        elif uncleared or not untouched or self.poison:
            self.memory.clear(address_bytes, size_bytes)
        return self.regions.free(address_bytes)

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

    def upload(self, tensor: DeviceTensor, host: HostView) -> DataConversionInfo:
        """Host → device copy with format and layout conversion; padding becomes zero.

        Returns what was executed; see `copy_to_device`.
        """
        memory = self.bytes_of(tensor)
        info = copy_to_device(host, tensor.layout, memory, self.numerics, self.pool)
        if self.sanitizer is not None:
            self.sanitizer.written(tensor.address_bytes, tensor.size_bytes, tensor.name)
        return info

    def download(self, tensor: DeviceTensor, host: HostView) -> DataConversionInfo:
        """Device → host copy into ``host.storage``; returns what was executed."""
        memory = self.bytes_of(tensor)
        return copy_to_host(host, tensor.layout, memory, self.numerics, self.pool)


def _sanitizer(choice: Choice) -> Sanitizer | None:
    """A sanitizer with the checks chosen, loaded only where there are any."""
    if choice is None or choice is False:
        return None
    from spyre.hw.sanitizer.checks import parse_checks
    from spyre.hw.sanitizer.sanitizer import Sanitizer

    checks = parse_checks(choice)
    return Sanitizer(checks) if checks else None
