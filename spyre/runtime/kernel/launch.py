"""Launch inputs, the signature that linking is cached by, and their binding to a program.

Parameters are matched by name (`%pool_base_addr`, `%arg_K_base_addr`); in a baked bundle argument K
is segment K, or K+1 when the launch has a pool, which is segment 0 (bundle reference §3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from spyre.dtypes import STICK_BYTES
from spyre.errors import LaunchError
from spyre.hw.linking import (
    AddressOwners,
    AddressWindow,
    Allocation,
    Binding,
    TileMap,
    window_base,
)
from spyre.hw.memory import DeviceTensor
from spyre.layout import SpyreTensorLayout
from spyre.mlir.program import Parameter
from spyre.runtime.program import POOL, owner_of, require_no_size

_MAX_SLOTS = 4096


@dataclass(frozen=True, slots=True)
class PoolBuffer:
    """Raw device memory for intermediates."""

    address_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class Launch:
    """Inputs of a launch: tensors by argument index, and the pool if the kernel needs one.

    ``values``: values of `index` parameters and runtime sizes by parameter name.
    """

    arguments: Mapping[int, DeviceTensor]
    pool: PoolBuffer | None = None
    values: Mapping[str, int] = field(default_factory=dict)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Start addresses in bytes: arguments in their order, then the pool."""
        addresses = tuple([tensor.address_bytes for tensor in self.arguments.values()])
        return addresses if self.pool is None else (*addresses, self.pool.address_bytes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its memory for messages, in the order of ``addresses``."""
        names = tuple([tensor.name for tensor in self.arguments.values()])
        return names if self.pool is None else (*names, "pool")

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors, without the pool."""
        return sum(tensor.size_bytes for tensor in self.arguments.values())


@dataclass(frozen=True, slots=True, eq=False)
class ArgumentSlot:
    """Properties of an argument that linking depends on; equal ones are one object (`slot_of`).

    ``device_dims``: extent and stride in bytes of the dims above the stick.
    """

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
    strides = [stride * layout.data_format.bits // 8 for stride in layout.device_strides[:-1]]
    dims = tuple(zip(layout.device_size[:-1], strides, strict=True))
    return _slot(layout.device_bytes, layout.element_arrangement, dims)


SignatureKey = tuple[object, ...]


def signature_key(launch: Launch) -> SignatureKey:
    """A key that is equal for launches of one kernel that differ only in addresses and names."""
    slots = tuple([slot_of(tensor.layout) for tensor in launch.arguments.values()])
    pool = None if launch.pool is None else launch.pool.size_bytes
    values = tuple(sorted(launch.values.items())) if launch.values else ()
    return (*launch.arguments, *slots, pool, values)


@dataclass(frozen=True, eq=False)
class LaunchSignature:
    """A launch without its addresses, so that programs linked for it can be launched anywhere.

    ``indices``: argument index of each address, POOL for the pool. ``names``: from the first launch
    of this signature. Immutable; any thread may use it with its kernel.
    """

    indices: tuple[int, ...]
    slots: tuple[ArgumentSlot, ...]
    values: Mapping[str, int]
    names: tuple[str, ...]

    @classmethod
    def of(cls, launch: Launch, maps: Mapping[int, TileMap]) -> LaunchSignature:
        """The signature of ``launch``. ``maps``: by index, of arguments bound as tiles, whose size
        is the tile's span.
        """
        indices, slots = [*launch.arguments], []
        for index, tensor in launch.arguments.items():
            slot = slot_of(tensor.layout)
            if index in maps:
                slot = _slot(maps[index].span_bytes, slot.arrangement, slot.device_dims)
            slots.append(slot)
        if launch.pool is not None:
            indices.append(POOL)
            slots.append(_slot(launch.pool.size_bytes))
        return cls(tuple(indices), tuple(slots), dict(launch.values), launch.names)

    @classmethod
    def of_memory(cls, spans_bytes: Sequence[int], values: Mapping[str, int]) -> LaunchSignature:
        """The signature of a launch over memory of these sizes, in which programs address views:
        there is no layout that the pitches of an operand have to agree with.
        """
        slots = tuple(_slot(-(-span // STICK_BYTES) * STICK_BYTES) for span in spans_bytes)
        names = tuple(f"arg_{k}" for k in range(len(slots)))
        return cls(tuple(range(len(slots))), slots, dict(values), names)

    @property
    def has_pool(self) -> bool:
        """True if the last address is that of a pool."""
        return POOL in self.indices

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the memory at each address."""
        return tuple(slot.size_bytes for slot in self.slots)


def bind(
    parameters: Sequence[Parameter],
    signature: LaunchSignature,
    addresses: Sequence[int],
    names: Sequence[str],
    scratch: Sequence[PoolBuffer],
    maps: Mapping[int, TileMap],
) -> tuple[Binding, tuple[int, ...]]:
    """Bind ``parameters``, segments and memory; LaunchError if the launch is incomplete.

    ``addresses``, ``names``: one per slot of ``signature``; ``scratch``: memory of
    device_mem_allocate. ``maps``: by index, of arguments whose address is the corner of a tile.
    Also returns, for each allocation of the binding, the number of its start address among
    ``addresses`` followed by ``scratch``.
    """
    windows = {index: k for k, index in enumerate(maps)}
    memory = [
        *(
            Allocation(name, address, slot.size_bytes, slot.arrangement, slot.device_dims)
            for slot, address, name in zip(signature.slots, addresses, names, strict=True)
        ),
        *(
            Allocation(scratch_name(k), buffer.address_bytes, buffer.size_bytes)
            for k, buffer in enumerate(scratch)
        ),
    ]
    # Arguments that share memory under one name are one allocation.
    allocations = sorted(dict.fromkeys(memory), key=lambda a: a.address_bytes)
    number = {allocation: k for k, allocation in enumerate(allocations)}
    owner = [number[allocation] for allocation in memory]
    at = {argument: k for k, argument in enumerate(signature.indices)}
    # A tile is bound at the base of its window, which has no memory: the linker maps every offset
    # in the window into the larger tensor.
    starts = [
        window_base(windows[argument]) if argument in windows else address
        for argument, address in zip(signature.indices, addresses, strict=True)
    ]
    named = {
        parameter.name: _address_of(parameter, signature, at)
        for parameter in parameters
        if parameter.name not in signature.values
    }
    segments = {} if parameters else dict(_segments(signature, at))
    owners = AddressOwners(
        {name: owner[k] for name, k in named.items()},
        {segment: owner[k] for segment, k in segments.items()},
        tuple(owner[len(signature.slots) :]),
    )
    binding = Binding(
        {**signature.values, **{name: starts[k] for name, k in named.items()}},
        None if parameters else {s: starts[k] for s, k in segments.items()},
        tuple(allocations),
        tuple(buffer.address_bytes for buffer in scratch),
        owners,
        tuple(AddressWindow(map_, addresses[at[k]], owner[at[k]]) for k, map_ in maps.items()),
    )
    return binding, tuple(owner.index(k) for k in range(len(allocations)))


def scratch_name(index: int) -> str:
    """Name of memory number ``index`` of device_mem_allocate in messages."""
    return f"device_mem_allocate {index}"


def _address_of(parameter: Parameter, signature: LaunchSignature, at: Mapping[int, int]) -> int:
    """Number of the address that a parameter holds."""
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
    """(segment, number of its start address) of each argument of a baked bundle."""
    # A baked address encodes its argument in the segment (16 GiB each); the pool is segment 0.
    first = 1 if signature.has_pool else 0
    for index, k in at.items():
        yield (0 if index == POOL else index + first), k
