"""A bundle loaded on a device: linked once per set of addresses, launched any number of times.

Parameters are matched by name (`%pool_base_addr`, `%arg_K_base_addr`); in a baked bundle argument K
is segment K, or K+1 when the launch has a pool, which is segment 0 (bundle reference §3.2).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from spyre.errors import LaunchError
from spyre.hw.address_map import AddressMap, AddressWindow, window_base
from spyre.hw.binding import Allocation, Binding
from spyre.hw.device import Device, DeviceTensor
from spyre.hw.executor import Progress
from spyre.hw.linked_program import LinkedProgram
from spyre.hw.linker import Linker
from spyre.mlir.bundle import Bundle
from spyre.mlir.loops import Parameter
from spyre.mlir.operation import Operation

POOL = -1
"""Argument index of the pool."""

MAX_LINKED = 64
"""Sets of addresses a kernel stays linked for; the one used longest ago goes first."""

_ARGUMENT = re.compile(r"arg_(\d+)_base_addr")
_POOL = "pool_base_addr"


@dataclass(frozen=True, slots=True)
class PoolBuffer:
    """Raw device memory for intermediates."""

    address_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Launch:
    """What a launch is given: tensors by argument index, and the pool where there is one.

    ``values``: values of `index` parameters and runtime sizes by parameter name.
    """

    arguments: Mapping[int, DeviceTensor]
    pool: PoolBuffer | None = None
    values: Mapping[str, int] = field(default_factory=dict)


class Kernel:
    """A bundle on a device. Thread use follows the device's: one at a time.

    ``operations``: by SDSC file, in place of the bundle's own; ``maps``: by argument index. Both
    for a kernel retargeted to tiles of larger tensors: an argument with a map is given by the
    address of the tile's corner, and its memory is the span of the tile.
    """

    def __init__(
        self,
        bundle: Bundle,
        device: Device,
        operations: Mapping[str, Operation] | None = None,
        maps: Mapping[int, AddressMap] | None = None,
    ) -> None:
        self.bundle = bundle
        self.device = device
        self.maps = dict(maps or {})
        self._linker = Linker(
            bundle.program,
            bundle.operations if operations is None else operations,
            device.numerics.half_format,
            device.threads,
            device.numerics.chunked,
            device.core_order,
        )
        self._linked: OrderedDict[tuple[object, ...], LinkedProgram] = OrderedDict()
        self._scratch: tuple[PoolBuffer, ...] | None = None

    def retargeted(
        self, operations: Mapping[str, Operation], maps: Mapping[int, AddressMap]
    ) -> Kernel:
        """The same kernel for tiles of larger tensors, in the same device_mem_allocate memory."""
        other = Kernel(self.bundle, self.device, operations, maps)
        other._scratch = self.reserve_scratch()
        return other

    def link(self, launch: Launch) -> LinkedProgram:
        """Tables and dispatches for ``launch``, from the cache if its addresses were seen."""
        binding = self.bind(launch)
        key = binding.key
        if key not in self._linked:
            self._linked[key] = self._linker.link(binding)
            if len(self._linked) > MAX_LINKED:
                self._linked.popitem(last=False)
        self._linked.move_to_end(key)
        return self._linked[key]

    def launch(self, launch: Launch) -> None:
        """Run the bundle in the compiled driver.

        Raises LaunchError for missing arguments, DeviceFault for addresses or indices out of range.
        """
        self.device.executor.run(self.link(launch))

    def launch_timed(
        self, launch: Launch, progress: Progress | None = None
    ) -> npt.NDArray[np.int64]:
        """Run dispatch by dispatch; host nanoseconds of each dispatch of ``link(launch)``."""
        return self.device.executor.run_timed(self.link(launch), progress)

    def bind(self, launch: Launch) -> Binding:
        """Parameters, segments and memory of ``launch``; LaunchError when it is incomplete."""
        allocations = [
            Allocation(
                tensor.name,
                tensor.address_bytes,
                self.maps[index].span_bytes if index in self.maps else tensor.size_bytes,
                tensor.layout.element_arrangement,
                _device_dims(tensor),
            )
            for index, tensor in launch.arguments.items()
        ]
        if launch.pool is not None:
            allocations.append(
                Allocation("pool", launch.pool.address_bytes, launch.pool.size_bytes)
            )
        scratch = self.reserve_scratch()
        allocations += [
            Allocation(f"device_mem_allocate {i}", s.address_bytes, s.size_bytes)
            for i, s in enumerate(scratch)
        ]
        return Binding(
            self._parameter_values(launch),
            None if self.bundle.program.parameters else self._segments(launch),
            tuple(sorted(set(allocations), key=lambda a: a.address_bytes)),
            tuple(s.address_bytes for s in scratch),
            tuple(
                AddressWindow(map_, launch.arguments[index].address_bytes)
                for index, map_ in self.maps.items()
            ),
        )

    def reserve_scratch(self) -> tuple[PoolBuffer, ...]:
        """Memory of device_mem_allocate: reserved once, kept until `release_scratch`."""
        if self._scratch is None:
            sizes = [a.size_bytes for a in self.bundle.program.allocations]
            self._scratch = tuple(PoolBuffer(self.device.allocate(n), n) for n in sizes)
        return self._scratch

    def release_scratch(self) -> None:
        """Give the memory of device_mem_allocate back."""
        for buffer in self._scratch or ():
            self.device.free(buffer.address_bytes)
        self._scratch = None

    def _parameter_values(self, launch: Launch) -> dict[str, int]:
        values = dict(launch.values)
        for parameter in self.bundle.program.parameters:
            if parameter.name in values:
                continue
            values[parameter.name] = self._parameter_address(parameter, launch)
        return values

    def _address_of(self, launch: Launch, index: int) -> int:
        """What the program takes for the address of argument ``index``."""
        if index in self.maps:
            return window_base(list(self.maps).index(index))
        return launch.arguments[index].address_bytes

    def _segments(self, launch: Launch) -> dict[int, int]:
        """Base address per segment of a baked bundle."""
        first = 0 if launch.pool is None else 1
        segments = {k + first: self._address_of(launch, k) for k in launch.arguments}
        if launch.pool is not None:
            segments[0] = launch.pool.address_bytes
        return segments

    def _parameter_address(self, parameter: Parameter, launch: Launch) -> int:
        require_no_size(parameter, launch.values)
        name = parameter.name
        if name == _POOL:
            if launch.pool is None:
                raise LaunchError("SPY361", "the kernel needs a pool, and none was given")
            return launch.pool.address_bytes
        match = _ARGUMENT.fullmatch(name)
        if match is None:
            raise LaunchError(
                "SPY362",
                f"no value for parameter %{name}",
                expected="a value by name, or a name of the form arg_K_base_addr",
            )
        index = int(match[1])
        if index not in launch.arguments:
            raise LaunchError(
                "SPY363",
                f"the kernel needs argument {index}, and it was not given",
                expected=f"argument {index} for %{name}",
                found=f"arguments {sorted(launch.arguments)}",
            )
        return self._address_of(launch, index)


def require_no_size(parameter: Parameter, values: Mapping[str, int]) -> None:
    """LaunchError SPY366 for a runtime size, which has to be among ``values`` by name."""
    if not parameter.is_size:
        return
    steps = parameter.granularity or 1
    most = "" if parameter.max_value is None else f" up to {parameter.max_value}"
    raise LaunchError(
        "SPY366",
        f"runtime size {parameter.name} has no value",
        parameter.location,
        expected=f"a value for {parameter.name}: a positive multiple of {steps}{most}",
        found=", ".join(values) or "no values",
    )


def _device_dims(tensor: DeviceTensor) -> tuple[tuple[int, int], ...]:
    """Extent and stride in bytes of the dims above the stick."""
    layout = tensor.layout
    strides = (stride * layout.data_format.bits // 8 for stride in layout.device_strides[:-1])
    return tuple(zip(layout.device_size[:-1], strides, strict=True))


def argument_indices(bundle: Bundle) -> Sequence[int]:
    """Argument indices that a symbolic bundle's parameters name, pool excluded, ascending."""
    found = (_ARGUMENT.fullmatch(p.name) for p in bundle.program.parameters)
    return sorted(int(m[1]) for m in found if m is not None)
