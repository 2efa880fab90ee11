"""A launch: what it is given, what of it linking depends on, how it may be run, what it leaves.

Parameters are matched by name (`%pool_base_addr`, `%arg_K_base_addr`); in a baked bundle argument K
is segment K, or K+1 when the launch has a pool, which is segment 0 (bundle reference §3.2).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from spyre import config
from spyre.errors import LaunchError
from spyre.hw.counters import ExecuteLabels
from spyre.hw.device import Device, Progress
from spyre.hw.linking import (
    AddressProvenance,
    AddressWindow,
    Allocation,
    Binding,
    LinkedProgram,
    TileMap,
    window_base,
)
from spyre.hw.memory import DeviceTensor
from spyre.layout import SpyreTensorLayout
from spyre.mlir.program import LoopProgram, Parameter
from spyre.runtime.program import POOL, owner_of, require_no_size

_MAX_SLOTS = 4096


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

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where its memory begins, bytes: arguments in their order, then the pool."""
        addresses = tuple([tensor.address_bytes for tensor in self.arguments.values()])
        return addresses if self.pool is None else (*addresses, self.pool.address_bytes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its memory for messages, in the order of ``addresses``."""
        names = tuple([tensor.name for tensor in self.arguments.values()])
        return names if self.pool is None else (*names, "pool")


@dataclass(frozen=True, slots=True, eq=False)
class ArgumentSlot:
    """What linking depends on of one argument; one object per content (`slot_of`)."""

    size_bytes: int
    arrangement: str = "STANDARD"
    device_dims: tuple[tuple[int, int], ...] = ()


@lru_cache(_MAX_SLOTS)
def _slot(
    size_bytes: int, arrangement: str = "STANDARD", dims: tuple[tuple[int, int], ...] = ()
) -> ArgumentSlot:
    return ArgumentSlot(size_bytes, arrangement, dims)


@lru_cache(_MAX_SLOTS)
def slot_of(layout: SpyreTensorLayout) -> ArgumentSlot:
    return _slot(layout.device_bytes, layout.element_arrangement, _device_dims(layout))


def _device_dims(layout: SpyreTensorLayout) -> tuple[tuple[int, int], ...]:
    """Extent and stride in bytes of the dims above the stick."""
    strides = (stride * layout.data_format.bits // 8 for stride in layout.device_strides[:-1])
    return tuple(zip(layout.device_size[:-1], strides, strict=True))


SignatureKey = tuple[object, ...]


def signature_key(launch: Launch) -> SignatureKey:
    """What two launches of one kernel have in common if they differ by addresses and names only."""
    slots = tuple([slot_of(tensor.layout) for tensor in launch.arguments.values()])
    pool = None if launch.pool is None else launch.pool.size_bytes
    values = tuple(sorted(launch.values.items())) if launch.values else ()
    return (*launch.arguments, *slots, pool, values)


@dataclass(frozen=True, eq=False)
class LaunchSignature:
    """Everything of a launch but its addresses: made once, launched at any addresses.

    ``indices``: argument index of each address, POOL for the pool. ``names``: as in the launch it
    was made from. Immutable; any thread may use it with the kernel it was made by.
    """

    indices: tuple[int, ...]
    slots: tuple[ArgumentSlot, ...]
    values: Mapping[str, int]
    names: tuple[str, ...]

    @classmethod
    def of(cls, launch: Launch) -> LaunchSignature:
        indices = (*launch.arguments, *(() if launch.pool is None else (POOL,)))
        slots = tuple([slot_of(tensor.layout) for tensor in launch.arguments.values()])
        if launch.pool is not None:
            slots = (*slots, _slot(launch.pool.size_bytes))
        return cls(indices, slots, dict(launch.values), launch.names)

    def seen_through(self, maps: Mapping[int, TileMap]) -> LaunchSignature:
        """The shape where arguments with a map are tiles: as long as they span."""
        slots = tuple(
            _slot(maps[index].span_bytes, slot.arrangement, slot.device_dims)
            if index in maps
            else slot
            for index, slot in zip(self.indices, self.slots, strict=True)
        )
        return replace(self, slots=slots)

    @property
    def has_pool(self) -> bool:
        """True if the last address is that of a pool."""
        return POOL in self.indices

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the memory at each address."""
        return tuple(slot.size_bytes for slot in self.slots)


def bind(
    program: LoopProgram,
    signature: LaunchSignature,
    addresses: Sequence[int],
    names: Sequence[str],
    scratch: Sequence[PoolBuffer],
    maps: Mapping[int, TileMap] | None = None,
) -> tuple[Binding, tuple[int, ...]]:
    """Parameters, segments and memory of a launch; LaunchError when it is incomplete.

    ``addresses``, ``names``: one per slot of ``signature``; ``scratch``: memory of
    device_mem_allocate. ``maps``: by argument index, of arguments given by the corner of a tile.
    Also, per allocation of the binding, which address it begins at: number of one of ``addresses``,
    or of ``scratch`` behind them.
    """
    windows = {index: k for k, index in enumerate(maps or {})}
    memory = [*_allocations(signature, addresses, names), *_scratch_allocations(scratch)]
    # Arguments that share memory under one name are one allocation.
    allocations = sorted(dict.fromkeys(memory), key=lambda a: a.address_bytes)
    number = {allocation: k for k, allocation in enumerate(allocations)}
    owner = [number[allocation] for allocation in memory]
    at = {argument: k for k, argument in enumerate(signature.indices)}
    # A tile is bound at the base of its window, where no memory is: the linker maps every offset
    # from there into the larger tensor.
    starts = [
        window_base(windows[argument]) if argument in windows else address
        for argument, address in zip(signature.indices, addresses, strict=True)
    ]
    named = dict(_named_addresses(program, signature, at))
    segments = {} if program.parameters else dict(_segments(signature, at))
    provenance = AddressProvenance(
        {name: owner[k] for name, k in named.items()},
        {segment: owner[k] for segment, k in segments.items()},
        tuple(owner[len(signature.slots) :]),
        tuple(owner[at[index]] for index in windows),
    )
    binding = Binding(
        {**signature.values, **{name: starts[k] for name, k in named.items()}},
        None if program.parameters else {s: starts[k] for s, k in segments.items()},
        tuple(allocations),
        tuple(buffer.address_bytes for buffer in scratch),
        provenance,
        tuple(AddressWindow(map_, addresses[at[k]]) for k, map_ in (maps or {}).items()),
    )
    return binding, tuple(owner.index(k) for k in range(len(allocations)))


def _allocations(
    signature: LaunchSignature, addresses: Sequence[int], names: Sequence[str]
) -> Iterator[Allocation]:
    for slot, address, name in zip(signature.slots, addresses, names, strict=True):
        yield Allocation(name, address, slot.size_bytes, slot.arrangement, slot.device_dims)


def _scratch_allocations(scratch: Sequence[PoolBuffer]) -> Iterator[Allocation]:
    for k, buffer in enumerate(scratch):
        yield Allocation(scratch_name(k), buffer.address_bytes, buffer.size_bytes)


def scratch_name(index: int) -> str:
    """What messages call memory number ``index`` of device_mem_allocate."""
    return f"device_mem_allocate {index}"


def _named_addresses(
    program: LoopProgram, signature: LaunchSignature, at: Mapping[int, int]
) -> Iterator[tuple[str, int]]:
    """Parameters whose value is the address of an argument or of the pool: name, which address."""
    for parameter in program.parameters:
        if parameter.name not in signature.values:
            yield parameter.name, _address_of(parameter, signature, at)


def _address_of(parameter: Parameter, signature: LaunchSignature, at: Mapping[int, int]) -> int:
    require_no_size(parameter, signature.values)
    name = parameter.name
    owner = owner_of(name)
    if owner is None:
        raise LaunchError(
            "SPY362",
            f"no value for parameter %{name}",
            expected="a value by name, or a name of the form arg_K_base_addr",
        )
    if owner in at:
        return at[owner]
    if owner == POOL:
        raise LaunchError("SPY361", "the kernel needs a pool, and none was given")
    raise LaunchError(
        "SPY363",
        f"the kernel needs argument {owner}, and it was not given",
        expected=f"argument {owner} for %{name}",
        found=f"arguments {sorted(k for k in at if k != POOL)}",
    )


def _segments(signature: LaunchSignature, at: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Segments of a baked bundle: which address each begins at."""
    # Baked addresses carry their argument in the segment (16 GiB each): the pool comes first.
    first = 1 if signature.has_pool else 0
    for index, k in at.items():
        yield (0 if index == POOL else index + first), k


UNLABELLED = ExecuteLabels()
"""Executes numbered from 0, SDSC files without a directory."""


@dataclass(frozen=True, eq=False)
class ExecutedLaunch:
    """A launch that has run: ``begin_ns`` on the host's clock, ``elapsed_ns`` per dispatch.

    ``elapsed_ns``: None where it ran in one go. ``name``: of the kernel, where it is known.
    ``label``: how its executes are numbered and its
    SDSC files named. ``interpreted``: dispatches that ran while their kernels were being compiled.
    """

    linked: LinkedProgram
    begin_ns: int
    elapsed_ns: npt.NDArray[np.int64] | None = None
    label: ExecuteLabels = UNLABELLED
    name: str = ""
    interpreted: int = 0


Runner = Callable[[Device, LinkedProgram], ExecutedLaunch]
"""Runs a launch on the compute engine; what it returns is kept in the outcome."""


def run_recorded(device: Device, linked: LinkedProgram) -> ExecutedLaunch:
    """Run a launch in the compiled driver, as without a runner, and keep what was linked."""
    begin, before = time.perf_counter_ns(), device.executor.interpreted
    device.executor.run(linked)
    return ExecutedLaunch(linked, begin, interpreted=device.executor.interpreted - before)


def timed_runner(progress: Progress | None = None, label: ExecuteLabels = UNLABELLED) -> Runner:
    """Run dispatch by dispatch; kernels are compiled or loaded before the first, or it is
    interpreted.
    """

    def run_timed(device: Device, linked: LinkedProgram) -> ExecutedLaunch:
        executor = device.executor
        executor.prepare(linked)
        begin, before = time.perf_counter_ns(), executor.interpreted
        elapsed = executor.run_timed(linked, progress)
        return ExecutedLaunch(
            linked, begin, elapsed, label, interpreted=executor.interpreted - before
        )

    return run_timed


class Remainder(StrEnum):
    """A dim that is no multiple of its tile: refuse, or run the last tile on padded copies."""

    ERROR = "error"
    PAD = "pad"


class Reduction(StrEnum):
    """A tiled dim that the kernel reduces: refuse, or add up the results of its tiles."""

    ERROR = "error"
    ACCUMULATE = "accumulate"


@dataclass(frozen=True, slots=True)
class TilingOptions:
    """Options of one launch; ``allow_tiled_launch`` is SPYRE_ALLOW_TILED_LAUNCH by default."""

    allow_tiled_launch: bool = field(default_factory=config.tiled_launch_allowed)
    remainder: Remainder = Remainder.ERROR
    reduction: Reduction = Reduction.ERROR

    def __post_init__(self) -> None:
        object.__setattr__(self, "remainder", Remainder(self.remainder))
        object.__setattr__(self, "reduction", Reduction(self.reduction))
