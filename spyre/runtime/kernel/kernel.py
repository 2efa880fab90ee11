"""A bundle loaded on a device: linked once per shape of launch, launched at any addresses.

What a launch's addresses change is moved (:mod:`spyre.hw.linking.linked_program`); only where that
is not exact, or a launch of another shape comes, is the bundle linked again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from spyre.hw.device.device import Device
from spyre.hw.device.executor import Progress
from spyre.hw.linking.binding import Binding, TileMap
from spyre.hw.linking.linked_program import (
    BatchGroup,
    LinkedBatch,
    LinkedProgram,
    is_movable,
    movable_rows,
    move,
)
from spyre.hw.linking.linker import Linker
from spyre.hw.linking.provenance import AliasStructure, alias_rows, alias_structure, equal_runs
from spyre.layout.access_map import Int64Array
from spyre.mlir.operation.operation import Operation
from spyre.runtime.kernel.launch import (
    Launch,
    LaunchShape,
    PoolBuffer,
    ShapeKey,
    bind,
    scratch_name,
    shape_key,
)
from spyre.runtime.program.compiled import KernelSource
from spyre.runtime.program.symbols import POOL, argument_index

__all__ = [
    "POOL",
    "Kernel",
    "Launch",
    "LaunchShape",
    "PoolBuffer",
    "argument_indices",
]

MAX_LINKED = 64
"""Sets of addresses a kernel stays linked for; the one used longest ago goes first."""
MAX_SHAPES = 64
"""Shapes of launches a kernel stays linked for."""
MAX_ALIASES = 16
"""Ways in which the memory of launches of one shape may overlap, per shape."""

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class _Template:
    """A program linked at ``addresses`` and with ``names`` of its memory.

    Allocation k of its binding begins at address number ``places[k]``.
    """

    linked: LinkedProgram
    places: tuple[int, ...]
    addresses: tuple[int, ...]
    names: tuple[str, ...]

    def titles(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the allocations in a launch with ``names`` of its memory."""
        every = (*names, *map(scratch_name, range(len(self.addresses) - len(names))))
        return tuple([every[place] for place in self.places])


@dataclass(frozen=True)
class _Known:
    """What was linked of one shape; ``sizes``: bytes at every address, scratch included."""

    sizes: tuple[int, ...]
    templates: OrderedDict[AliasStructure | None, _Template] = field(default_factory=OrderedDict)


class Kernel:
    """A bundle on a device.

    Any thread may link, also while another one runs what was linked; `launch` and `launch_timed`
    run, and follow the device: one thread at a time. The first use of a bundle with
    device_mem_allocate takes memory of the device; `reserve_scratch` does so beforehand.

    ``operations``: by SDSC file, in place of the bundle's own; ``maps``: by argument index. Both
    for a kernel retargeted to tiles of larger tensors: an argument with a map is given by the
    address of the tile's corner, and its memory is the span of the tile.
    """

    def __init__(
        self,
        bundle: KernelSource,
        device: Device,
        operations: Mapping[str, Operation] | None = None,
        maps: Mapping[int, TileMap] | None = None,
    ) -> None:
        self.bundle = bundle
        self.device = device
        self.operations = bundle.operations if operations is None else operations
        self.maps = dict(maps or {})
        self._linker = Linker(
            bundle.program,
            self.operations,
            device.numerics.half_format,
            device.threads,
            device.numerics.chunked,
            device.core_order,
        )
        self._lock = threading.RLock()
        self._shapes: OrderedDict[ShapeKey, LaunchShape] = OrderedDict()
        self._known: OrderedDict[LaunchShape, _Known] = OrderedDict()
        self._linked: OrderedDict[tuple[object, ...], LinkedProgram] = OrderedDict()
        self._scratch: tuple[PoolBuffer, ...] | None = None

    def retargeted(
        self, operations: Mapping[str, Operation], maps: Mapping[int, TileMap]
    ) -> Kernel:
        """The same kernel for tiles of larger tensors, in the same device_mem_allocate memory."""
        other = Kernel(self.bundle, self.device, operations, maps)
        other._scratch = self.reserve_scratch()
        return other

    # --- linking ------------------------------------------------------------------------------

    def link(self, launch: Launch) -> LinkedProgram:
        """Tables and dispatches for ``launch``; moved, or kept, where its shape was seen."""
        return self.link_at(self.shape_of(launch), launch.addresses, launch.names)

    def shape_of(self, launch: Launch) -> LaunchShape:
        """Everything of ``launch`` but its addresses; the same object for equal ones."""
        key = shape_key(launch)
        with self._lock:
            shape = self._shapes.get(key)
            if shape is not None:
                self._shapes.move_to_end(key)
                return shape
            shape = LaunchShape.of(launch)
            if self.maps:
                shape = shape.seen_through(self.maps)
            _keep(self._shapes, key, shape, MAX_SHAPES)
        return shape

    def link_at(
        self, shape: LaunchShape, addresses: Sequence[int], names: tuple[str, ...] = ()
    ) -> LinkedProgram:
        """`link` of a launch of ``shape`` whose memory begins at ``addresses``, bytes.

        ``names``: for messages; those of ``shape`` if empty.
        """
        every = self._with_scratch(addresses)
        names = names or shape.names
        key = (shape, every, names)
        with self._lock:
            linked = self._linked.get(key)
            if linked is not None:
                self._linked.move_to_end(key)
                return linked
        linked = self._link(shape, every, names)
        with self._lock:
            _keep(self._linked, key, linked, MAX_LINKED)
        return linked

    def link_batch(self, launches: Sequence[Launch]) -> LinkedBatch:
        """``launches`` one behind another, as `Executor.run_batch` takes them."""
        groups: list[BatchGroup] = []
        for shape, found in groupby(launches, key=self.shape_of):
            run = list(found)
            addresses = np.array([launch.addresses for launch in run], np.int64)
            names = [launch.names for launch in run]
            groups += self.link_batch_at(shape, addresses, names).groups
        return LinkedBatch(groups)

    def link_batch_at(
        self, shape: LaunchShape, addresses: Int64Array, names: Sequence[tuple[str, ...]] = ()
    ) -> LinkedBatch:
        """Launches of ``shape`` whose memory begins at ``addresses``, [launch, address] in bytes.

        ``names``: per launch, as for `link_at`. Raises what `link` of the first launch that cannot
        be linked raises.
        """
        scratch = np.array([b.address_bytes for b in self.reserve_scratch()], np.int64)
        every = np.column_stack((addresses, np.tile(scratch, (len(addresses), 1))))
        sizes = np.array(self._known_of(shape).sizes, np.int64)
        groups: list[BatchGroup] = []
        for first, last in equal_runs(movable_rows(every, sizes), alias_rows(every, sizes)):
            groups += self._groups(shape, every[first:last], names[first:last])
        return LinkedBatch(groups)

    def _groups(
        self, shape: LaunchShape, every: Int64Array, names: Sequence[tuple[str, ...]]
    ) -> list[BatchGroup]:
        """Groups of launches whose memory, scratch included, is at ``every`` and overlaps alike."""
        first = names[0] if names else shape.names
        template = self._template(shape, tuple(every[0].tolist()), first)
        if template is not None and template.linked.code.movable:
            bases = np.ascontiguousarray(every[:, list(template.places)])
            return [BatchGroup(template.linked, bases, tuple(map(template.titles, names)))]
        rows = every[:, : len(shape.slots)].tolist()
        titled = zip(rows, names or [shape.names] * len(rows), strict=True)
        return [BatchGroup(self.link_at(shape, tuple(row), own)) for row, own in titled]

    def _link(
        self, shape: LaunchShape, every: tuple[int, ...], names: tuple[str, ...]
    ) -> LinkedProgram:
        """Link or move; ``every``: addresses of the launch and of device_mem_allocate."""
        template = self._template(shape, every, names)
        if template is not None and (template.addresses, template.names) == (every, names):
            return template.linked
        if template is None or not template.linked.code.movable:
            return self._link_anew(shape, every, names).linked
        bases = [every[place] for place in template.places]
        return move(template.linked, bases, template.titles(names))

    def _template(
        self, shape: LaunchShape, every: tuple[int, ...], names: tuple[str, ...]
    ) -> _Template | None:
        """What was linked of launches like this one, linked now if nothing was; None if memory at
        these addresses cannot be moved.
        """
        known = self._known_of(shape)
        if not is_movable(every, known.sizes):
            return None
        aliases = alias_structure(every, known.sizes)
        template = known.templates.get(aliases)
        if template is None:
            template = self._link_anew(shape, every, names)
            with self._lock:
                _keep(known.templates, aliases, template, MAX_ALIASES)
        return template

    def _link_anew(
        self, shape: LaunchShape, every: tuple[int, ...], names: tuple[str, ...]
    ) -> _Template:
        count, sizes = len(shape.slots), self._known_of(shape).sizes
        scratch = list(map(PoolBuffer, every[count:], sizes[count:]))
        bound = bind(self.bundle.program, shape, every[:count], names, scratch, self.maps)
        return _Template(self._linker.link(bound.binding), bound.places, every, names)

    def _known_of(self, shape: LaunchShape) -> _Known:
        with self._lock:
            known = self._known.get(shape)
            if known is not None:
                self._known.move_to_end(shape)
                return known
            scratch = self.reserve_scratch()
            known = _Known((*shape.sizes, *(buffer.size_bytes for buffer in scratch)))
            _keep(self._known, shape, known, MAX_SHAPES)
        return known

    # --- running ------------------------------------------------------------------------------

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
        shape, scratch = self.shape_of(launch), self.reserve_scratch()
        given = (launch.addresses, launch.names, scratch, self.maps)
        return bind(self.bundle.program, shape, *given).binding

    # --- memory of device_mem_allocate --------------------------------------------------------

    def reserve_scratch(self) -> tuple[PoolBuffer, ...]:
        """Memory of device_mem_allocate: reserved once, kept until `release_scratch`."""
        found = self._scratch
        if found is not None:
            return found
        with self._lock:
            if self._scratch is None:
                sizes = [a.size_bytes for a in self.bundle.program.allocations]
                self._scratch = tuple(PoolBuffer(self.device.allocate(n), n) for n in sizes)
            return self._scratch

    def release_scratch(self) -> None:
        """Give the memory of device_mem_allocate back."""
        with self._lock:
            for buffer in self._scratch or ():
                self.device.free(buffer.address_bytes)
            self._scratch = None

    def _with_scratch(self, addresses: Sequence[int]) -> tuple[int, ...]:
        scratch = self.reserve_scratch()
        return (*addresses, *[buffer.address_bytes for buffer in scratch])


def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """``value`` as the last used of at most ``most``."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


def argument_indices(bundle: KernelSource) -> Sequence[int]:
    """Argument indices that a symbolic bundle's parameters name, pool excluded, ascending."""
    found = (argument_index(parameter.name) for parameter in bundle.program.parameters)
    return sorted(index for index in found if index is not None)
