"""A program on a device: linked once per launch signature, launched at any addresses by a runner.

A launch at other addresses moves the linked program (:func:`spyre.hw.linking.linked_program.move`).
The program is linked anew only if moving is not exact, or for a launch of another signature.

Parameters are matched by name (`%pool_base_addr`, `%arg_K_base_addr`); in a baked bundle argument K
is segment K, or K+1 when the launch has a pool, which is segment 0 (bundle reference §3.2).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.dtypes import STICK_BYTES
from spyre.errors import LaunchError
from spyre.hw.counters import UNLABELLED, ExecuteLabels
from spyre.hw.device import Device, Progress
from spyre.hw.linking import (
    AddressOwners,
    AddressWindow,
    AliasStructure,
    Allocation,
    BatchGroup,
    Binding,
    LinkedProgram,
    Linker,
    TileMap,
    alias_rows,
    alias_structure,
    equal_runs,
    is_movable,
    movable_rows,
    move,
    window_base,
)
from spyre.hw.memory import DeviceTensor
from spyre.layout import Int64Array, SpyreTensorLayout
from spyre.lru_cache import LruCache
from spyre.mlir.operation import Operation
from spyre.mlir.program import Parameter
from spyre.runtime.program import POOL, LoweredProgram, owner_of, require_no_size

# --- launches and their signatures ---------------------------------------------------------------

_MAX_SLOTS = 4096


class PoolBuffer(msgspec.Struct, frozen=True):
    """Raw device memory for intermediates."""

    address_bytes: int
    size_bytes: int


class Launch(msgspec.Struct, frozen=True):
    """Inputs of a launch: tensors by argument index, and the pool if the kernel needs one.

    ``values``: values of `index` parameters and runtime sizes by parameter name.
    """

    arguments: Mapping[int, DeviceTensor]
    pool: PoolBuffer | None = None
    values: Mapping[str, int] = msgspec.field(default_factory=dict)

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


class ArgumentSlot(msgspec.Struct, frozen=True, eq=False):
    """Properties of an argument that linking depends on; equal ones are one object (`slot_of`).

    ``device_dims``: extent and stride in bytes of the dims above the stick.
    """

    size_bytes: int
    arrangement: str = "STANDARD"
    device_dims: tuple[tuple[int, int], ...] = ()


_slot = lru_cache(_MAX_SLOTS)(ArgumentSlot)


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


class LaunchSignature(msgspec.Struct, frozen=True, eq=False, dict=True, weakref=True):
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
        """Signature of ``launch``; ``maps``: by index, of arguments whose size is a tile's span."""
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
        expected = "a value by name, or a name of the form arg_K_base_addr"
        raise LaunchError("SPY362", f"no value for parameter %{name}", expected=expected)
    if owner in at:
        return at[owner]
    if owner == POOL:
        raise LaunchError("SPY361", "the kernel needs a pool, and none was given")
    message = f"the kernel needs argument {owner}, and it was not given"
    found = f"arguments {sorted(k for k in at if k != POOL)}"
    raise LaunchError("SPY363", message, expected=f"argument {owner} for %{name}", found=found)


def _segments(signature: LaunchSignature, at: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """(segment, number of its start address) of each argument of a baked bundle."""
    # A baked address encodes its argument in the segment (16 GiB each); the pool is segment 0.
    first = 1 if POOL in signature.indices else 0
    for index, k in at.items():
        yield (0 if index == POOL else index + first), k


# --- kernels -------------------------------------------------------------------------------------

MIN_LINKED, MAX_LINKED, MAX_LINKED_DISPATCHES = 64, 1024, 8192
"""Sets of addresses that a kernel stays linked for: as many as have so few dispatches in all, since
the layers of a model launch one kernel at many. The least recently used is dropped."""
MAX_SIGNATURES = 64
"""Launch signatures that a kernel keeps."""
MAX_TEMPLATES = 256
"""Pairs of a signature and a pattern of overlapping memory that a kernel stays linked for."""


class _Template(msgspec.Struct, frozen=True):
    """A program linked at ``addresses`` and with ``names`` of its memory.

    Allocation k of its binding begins at address number ``address_of[k]``.
    """

    linked: LinkedProgram
    address_of: tuple[int, ...]
    addresses: tuple[int, ...]
    names: tuple[str, ...]

    def allocation_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the allocations in a launch with ``names`` of its memory."""
        scratch = map(scratch_name, range(len(self.addresses) - len(names)))
        all_names = (*names, *scratch)
        return tuple([all_names[k] for k in self.address_of])


class Kernel:
    """A program on a device.

    Any thread may link, also while another one runs a linked program. `launch` runs on the device:
    one thread at a time. The first use of a program with device_mem_allocate reserves its device
    memory; `reserve_scratch` does so in advance.

    ``operations``: by name, replacing those of the bundle; ``maps``: by argument index. Both are
    for a kernel retargeted to tiles of larger tensors: the address of an argument with a map is the
    corner of the tile, and its size is the span of the tile.
    """

    def __init__(
        self,
        bundle: LoweredProgram,
        device: Device,
        operations: Mapping[str, Operation] | None = None,
        maps: Mapping[int, TileMap] | None = None,
    ) -> None:
        self.bundle = bundle
        self.device = device
        self.operations = bundle.operations if operations is None else operations
        self.maps = dict(maps or {})
        self._linker = Linker(
            bundle.program, self.operations, device.numerics, device.threads, device.core_order
        )
        self._lock = threading.RLock()
        self._signatures: LruCache[SignatureKey, LaunchSignature] = LruCache(MAX_SIGNATURES)
        self._templates: LruCache[tuple[LaunchSignature, AliasStructure | None], _Template]
        self._templates = LruCache(MAX_TEMPLATES)
        self._linked: LruCache[tuple[object, ...], LinkedProgram] = LruCache(MIN_LINKED)
        self._scratch: tuple[PoolBuffer, ...] | None = None

    def retargeted(
        self, operations: Mapping[str, Operation], maps: Mapping[int, TileMap]
    ) -> Kernel:
        """The kernel for tiles of larger tensors, with the same device_mem_allocate memory."""
        other = Kernel(self.bundle, self.device, operations, maps)
        other._scratch = self.reserve_scratch()
        return other

    # --- linking ------------------------------------------------------------------------------

    def link(self, launch: Launch) -> LinkedProgram:
        """Tables and dispatches for ``launch``, reused or moved if its signature is known."""
        return self.link_at(self.signature_of(launch), launch.addresses, launch.names)

    def signature_of(self, launch: Launch) -> LaunchSignature:
        """The signature of ``launch``; the same object for equal signatures."""
        return self._signatures.get_or_make(
            signature_key(launch), lambda: LaunchSignature.of(launch, self.maps)
        )

    def link_at(
        self, signature: LaunchSignature, addresses: Sequence[int], names: tuple[str, ...] = ()
    ) -> LinkedProgram:
        """Link a launch of ``signature`` with start addresses ``addresses`` (bytes).

        ``names``: of the memory, for messages; those of ``signature`` if empty.
        """
        # Names belong to the key, because faults of the linked program name the memory.
        scratch = self.reserve_scratch()
        all_addresses = (*addresses, *[buffer.address_bytes for buffer in scratch])
        names = names or signature.names
        key = (signature, all_addresses, names)
        linked = self._linked.get(key)
        if linked is None:
            linked = self._link(signature, all_addresses, names)
            dispatches = max(len(linked.host_dispatch), 1)
            most = min(MAX_LINKED, MAX_LINKED_DISPATCHES // dispatches)
            self._linked.limit = max(MIN_LINKED, most)
            self._linked.put(key, linked)
        return linked

    def link_batch_at(self, signature: LaunchSignature, addresses: Int64Array) -> list[BatchGroup]:
        """Link launches of ``signature`` with start addresses ``addresses`` [launch, address].

        Raises the error of the first launch that cannot be linked.
        """
        scratch = np.array([b.address_bytes for b in self.reserve_scratch()], np.int64)
        rows = np.column_stack((addresses, np.tile(scratch, (len(addresses), 1))))
        sizes = np.array(self._sizes_of(signature), np.int64)
        groups: list[BatchGroup] = []
        for first, last in equal_runs(movable_rows(rows, sizes), alias_rows(rows, sizes)):
            groups += self._groups(signature, rows[first:last])
        return groups

    def _groups(self, signature: LaunchSignature, rows: Int64Array) -> list[BatchGroup]:
        """Group launches whose memory (``rows``, scratch included) overlaps in the same way."""
        template = self._template(signature, tuple(rows[0].tolist()), signature.names)
        if template is not None and template.linked.code.movable:
            bases = np.ascontiguousarray(rows[:, list(template.address_of)])
            return [BatchGroup(template.linked, bases)]
        without_scratch = rows[:, : len(signature.slots)].tolist()
        return [BatchGroup(self.link_at(signature, tuple(row))) for row in without_scratch]

    def _link(
        self, signature: LaunchSignature, addresses: tuple[int, ...], names: tuple[str, ...]
    ) -> LinkedProgram:
        """Link or move; ``addresses``: of the launch and of device_mem_allocate."""
        template = self._template(signature, addresses, names)
        if template is not None and (template.addresses, template.names) == (addresses, names):
            return template.linked
        if template is None or not template.linked.code.movable:
            return self._link_anew(signature, addresses, names).linked
        bases = [addresses[k] for k in template.address_of]
        return move(template.linked, bases, template.allocation_names(names))

    def _template(
        self, signature: LaunchSignature, addresses: tuple[int, ...], names: tuple[str, ...]
    ) -> _Template | None:
        """A program linked for the same signature and overlaps, linked now if there is none.

        None if a program cannot be moved to or from these addresses.
        """
        sizes = self._sizes_of(signature)
        if not is_movable(addresses, sizes):
            return None
        key = signature, alias_structure(addresses, sizes)
        return self._templates.get_or_make(
            key, lambda: self._link_anew(signature, addresses, names)
        )

    def _link_anew(
        self, signature: LaunchSignature, addresses: tuple[int, ...], names: tuple[str, ...]
    ) -> _Template:
        count, sizes = len(signature.slots), self._sizes_of(signature)
        scratch = list(map(PoolBuffer, addresses[count:], sizes[count:]))
        binding, address_of = bind(
            self.bundle.program.parameters, signature, addresses[:count], names, scratch, self.maps
        )
        return _Template(self._linker.link(binding), address_of, addresses, names)

    def _sizes_of(self, signature: LaunchSignature) -> tuple[int, ...]:
        """Bytes at every address, device_mem_allocate included."""
        scratch = self.reserve_scratch()
        return (*signature.sizes, *[b.size_bytes for b in scratch]) if scratch else signature.sizes

    # --- running ------------------------------------------------------------------------------

    def launch(self, launch: Launch) -> None:
        """Run the program in the compiled driver.

        Raises LaunchError for missing arguments, DeviceFault for addresses or indices out of range.
        """
        self.device.executor.run(self.link(launch))

    # --- memory of device_mem_allocate --------------------------------------------------------

    def reserve_scratch(self) -> tuple[PoolBuffer, ...]:
        """Memory of device_mem_allocate, reserved once and kept until `release_scratch`."""
        scratch = self._scratch
        if scratch is not None:
            return scratch
        with self._lock:
            if self._scratch is None:
                sizes = [a.size_bytes for a in self.bundle.program.allocations]
                self._scratch = tuple(PoolBuffer(self.device.allocate(n), n) for n in sizes)
            return self._scratch

    def release_scratch(self) -> None:
        """Free the memory of device_mem_allocate."""
        with self._lock:
            for buffer in self._scratch or ():
                self.device.free(buffer.address_bytes)
            self._scratch = None


# --- runners: the record of a launch, and functions that run one ------------------------------


class ExecutedLaunch(msgspec.Struct, frozen=True, eq=False):
    """A launch that has run.

    ``begin_ns``: host clock. ``elapsed_ns``: per dispatch, None if the driver ran all at once.
    ``label``: numbering of its executes and naming of its SDSC files. ``name``: of the kernel, ""
    if unknown. ``interpreted``: number of dispatches that ran while their kernels were being
    compiled.
    """

    linked: LinkedProgram
    begin_ns: int
    elapsed_ns: npt.NDArray[np.int64] | None = None
    label: ExecuteLabels = UNLABELLED
    name: str = ""
    interpreted: int = 0


Runner = Callable[[Device, LinkedProgram], ExecutedLaunch]
"""Runs a launch on the compute engine; its return value becomes the launch's result."""


def run_recorded(device: Device, linked: LinkedProgram) -> ExecutedLaunch:
    """Run a launch in the compiled driver, as without a runner, and return its record."""
    begin, before = time.perf_counter_ns(), device.executor.interpreted
    device.executor.run(linked)
    return ExecutedLaunch(linked, begin, interpreted=device.executor.interpreted - before)


def timed_runner(progress: Progress | None = None, label: ExecuteLabels = UNLABELLED) -> Runner:
    """A runner that runs and times dispatch by dispatch.

    Kernels are compiled or loaded before the first dispatch, unless the program is interpreted.
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
