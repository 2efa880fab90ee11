"""Launches of any bundle at random places, for tests that compare addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec
import numpy as np
from msgspec.structs import replace

from spyre.errors import DeviceFault
from spyre.hw.device.device import Device
from spyre.hw.linking.binding import alias_rows, alias_structure
from spyre.hw.linking.linked_program import (
    BatchGroup,
    LinkedProgram,
    is_movable,
    movable_rows,
    move,
    place_rows,
)
from spyre.hw.memory.device_memory import DeviceTensor
from spyre.hw.spec import LX_BASE, LX_BYTES, REGION_BYTES
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.layout.access_map import Int64Array
from spyre.mlir.bundle import Bundle
from spyre.runtime.arguments.read import read_arguments
from spyre.runtime.kernel.kernel import Kernel, Launch, PoolBuffer

ROOM = 1 << 27
"""Bytes of memory between the places of different arguments."""


TABLES: Mapping[str, Mapping[int, tuple[int, int]]] = {"gather": {1: (64, 128)}}
"""By sample bundle, arguments that are larger than its SDSCs say."""


class Rig(msgspec.Struct, frozen=True):
    """A bundle with what its launches need: tensors without address, bytes of the pool."""

    bundle: Bundle
    tensors: Mapping[int, DeviceTensor]
    pool_bytes: int
    values: Mapping[str, int]

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        values: Mapping[str, int] | None = None,
        shapes: Mapping[int, tuple[int, int]] | None = None,
    ) -> Rig:
        """``shapes``: of arguments whose size the SDSC does not say (tables that indices pick)."""
        found = read_arguments(bundle, values)
        tensors = {
            a.arg_index: DeviceTensor(a.name, 0, a.layout, a.dtype_name, a.shape, a.strides)
            for a in found.arguments
        }
        for index, shape in (shapes or {}).items():
            layout = SpyreTensorLayout.from_host(shape, tensors[index].dtype)
            strides = contiguous_strides(shape)
            tensors[index] = replace(tensors[index], layout=layout, sizes=shape, strides=strides)
        names = {parameter.name for parameter in bundle.program.parameters}
        given = {name: v for name, v in (values or {}).items() if name in names}
        return cls(bundle, tensors, found.pool_bytes, given)

    @property
    def count(self) -> int:
        """Addresses a launch needs."""
        return len(self.tensors) + bool(self.pool_bytes)

    def at(self, addresses: list[int]) -> Launch:
        """The launch whose arguments, then pool, begin at ``addresses``."""
        placed = {
            k: replace(t, address_bytes=a)
            for (k, t), a in zip(self.tensors.items(), addresses, strict=False)
        }
        pool = PoolBuffer(addresses[-1], self.pool_bytes) if self.pool_bytes else None
        return Launch(placed, pool, self.values)

    def anywhere(self, rng: np.random.Generator) -> Launch:
        """A launch at random places that do not overlap; several may be in one region."""
        places = rng.permutation(7 * 64)[: self.count]
        offsets = rng.integers(0, ROOM // 512, self.count) * 128
        starts = places % 7 * REGION_BYTES + (1 << 32) + places // 7 * ROOM + offsets
        return self.at(starts.tolist())


def ranges(launch: Launch) -> list[tuple[int, int]]:
    """(address, bytes) of everything a launch is given."""
    found = [(t.address_bytes, t.size_bytes) for t in launch.arguments.values()]
    pool = launch.pool
    return found if pool is None else [*found, (pool.address_bytes, pool.size_bytes)]


def fill(device: Device, launch: Launch, seed: int) -> None:
    """Numbers of moderate size everywhere; in tensors of integers, small ones."""
    rng = np.random.default_rng(seed)
    for core in (0, 1, 31):
        device.memory.clear(LX_BASE + core * LX_BYTES, LX_BYTES)
    kinds = [t.dtype == "float16" for t in launch.arguments.values()] + [True]
    for (address, size), is_float in zip(ranges(launch), kinds, strict=False):
        values = rng.integers(0x3800, 0x4000, size // 2).astype(np.uint16)
        integers = rng.integers(0, 5, size // 4).astype(np.int32)
        device.memory.write(address, (values if is_float else integers).view(np.uint8))


def outcome(device: Device, linked: LinkedProgram, launch: Launch, seed: int) -> object:
    """All bytes a run leaves in the memory of its launch, or its fault's code and finding."""
    fill(device, launch, seed)
    try:
        device.executor.run(linked)
    except DeviceFault as fault:
        return fault.code, fault.finding.found, fault.finding.expected
    return [device.memory.read(address, size).tobytes() for address, size in ranges(launch)]


def anew(kernel: Kernel, launch: Launch) -> LinkedProgram:
    """``launch`` linked by a kernel that has seen nothing, with the same memory of its own."""
    fresh = Kernel(kernel.bundle, kernel.device)
    fresh._scratch = kernel.reserve_scratch()
    return fresh.link(launch)


def assert_same(found: LinkedProgram, expected: LinkedProgram) -> None:
    """Everything but the order of allocations is equal, and so is what each allocation is."""
    for name in ("tables", "dispatch", "host_dispatch"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
    for name in ("run_rows", "entries"):
        np.testing.assert_array_equal(getattr(found.code, name), getattr(expected.code, name), name)
    np.testing.assert_array_equal(found.schedule.order, expected.schedule.order)
    np.testing.assert_array_equal(found.schedule.instance, expected.schedule.instance)
    for ours, theirs in zip(found.schedule.symbols, expected.schedule.symbols, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(found.runs, expected.runs, strict=True):
        for run, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(run.instances, other.instances)
            np.testing.assert_array_equal(run.bases, other.bases)
            np.testing.assert_array_equal(run.pattern, other.pattern)
            np.testing.assert_array_equal(run.plan.tables, other.plan.tables)
            for operand in range(run.bases.shape[1]):
                np.testing.assert_array_equal(run.starts(operand), other.starts(operand))
    ours, theirs = found.binding, expected.binding
    assert (ours.parameters, ours.segments) == (theirs.parameters, theirs.segments)
    assert ours.scratch_addresses == theirs.scratch_addresses
    assert sorted(ours.allocations, key=repr) == sorted(theirs.allocations, key=repr)


def link_batch(kernel: Kernel, launches: Sequence[Launch]) -> list[BatchGroup]:
    """``launches`` one behind another, as `Executor.run_batch` takes them."""
    groups: list[BatchGroup] = []
    for signature, alike in groupby(launches, key=kernel.signature_of):
        run = list(alike)
        addresses = np.array([launch.addresses for launch in run], np.int64)
        groups += kernel.link_batch_at(signature, addresses)
    return groups


def programs_of(batch: Sequence[BatchGroup]) -> list[LinkedProgram]:
    """The launches of a batch as separate programs."""
    return [group.program(k) for group in batch for k in range(len(group))]


# --- moving what is linked --------------------------------------------------------------------


def is_relocatable(linked: LinkedProgram) -> bool:
    """True if every base of ``linked`` has an owner and its allocations meet `is_movable`."""
    origin = linked.code
    return linked.code.movable and is_movable(origin.bases.tolist(), origin.sizes)


def relocated(
    linked: LinkedProgram, bases: Sequence[int], names: tuple[str, ...] = ()
) -> LinkedProgram | None:
    """``linked`` with allocation ``k`` of the binding it was linked for at ``bases[k]``.

    Equal to linking at those addresses; None where it has to be linked anew: `is_relocatable` says
    no, or the allocations do not lie as `is_movable` asks or overlap in another way.
    """
    origin = linked.code
    if not is_relocatable(linked) or not is_movable(bases, origin.sizes):
        return None
    if alias_structure(bases, origin.sizes) != alias_structure(origin.bases, origin.sizes):
        return None
    return move(linked, bases, names)


def batched(linked: LinkedProgram, bases: Int64Array) -> Int64Array | None:
    """Dispatches of many launches one behind another, bases as host offsets.

    ``bases``: where the allocations begin, [launch, allocation] → [launch · dispatch,
    DISPATCH_WORDS]. None where `relocated` would give None for one of them.
    """
    origin = linked.code
    sizes = np.array(origin.sizes, np.int64)
    if not is_relocatable(linked) or not movable_rows(bases, sizes).all():
        return None
    if (alias_rows(bases, sizes) != alias_rows(origin.bases[None], sizes)).any():
        return None
    return place_rows(linked.code, bases)
