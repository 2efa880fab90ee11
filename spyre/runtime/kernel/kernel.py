"""A compiled bundle on a device: linked once per signature of launch, launched at any addresses.

What a launch's addresses change is moved (:func:`spyre.hw.linking.linked_program.move`); only where
that is not exact, or a launch of another signature comes, is the bundle linked again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from spyre.hw.device import Device
from spyre.hw.linking import (
    AliasStructure,
    BatchGroup,
    Binding,
    LinkedBatch,
    LinkedProgram,
    Linker,
    TileMap,
    alias_rows,
    alias_structure,
    equal_runs,
    is_movable,
    movable_rows,
    move,
)
from spyre.layout import Int64Array
from spyre.lru_cache import LruCache
from spyre.mlir.operation import Operation
from spyre.runtime.kernel.launch import (
    Launch,
    LaunchSignature,
    PoolBuffer,
    SignatureKey,
    bind,
    scratch_name,
    signature_key,
)
from spyre.runtime.program import LoweredBundle

MAX_LINKED = 64
"""Sets of addresses a kernel stays linked for; the one used longest ago goes first."""
MAX_SIGNATURES = 64
"""Signatures of launches a kernel stays linked for."""
MAX_ALIASES = 16
"""Ways in which the memory of launches of one signature may overlap, per signature."""


@dataclass(frozen=True)
class _Template:
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


@dataclass(frozen=True)
class _Templates:
    """What was linked of one signature; ``sizes``: bytes at every address, scratch included."""

    sizes: tuple[int, ...]
    by_aliases: LruCache[AliasStructure | None, _Template] = field(
        default_factory=lambda: LruCache(MAX_ALIASES)
    )


class Kernel:
    """A bundle on a device.

    Any thread may link, also while another one runs what was linked; `launch` runs, and follows the
    device: one thread at a time. The first use of a bundle with device_mem_allocate takes memory of
    the device; `reserve_scratch` does so beforehand.

    ``operations``: by SDSC file, in place of the bundle's own; ``maps``: by argument index. Both
    for a kernel retargeted to tiles of larger tensors: an argument with a map is given by the
    address of the tile's corner, and its memory is the span of the tile.
    """

    def __init__(
        self,
        bundle: LoweredBundle,
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
        self._signatures: LruCache[SignatureKey, LaunchSignature] = LruCache(MAX_SIGNATURES)
        self._templates: LruCache[LaunchSignature, _Templates] = LruCache(MAX_SIGNATURES)
        self._linked: LruCache[tuple[object, ...], LinkedProgram] = LruCache(MAX_LINKED)
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
        """Tables and dispatches for ``launch``; moved, or kept, where its signature was seen."""
        return self.link_at(self.signature_of(launch), launch.addresses, launch.names)

    def signature_of(self, launch: Launch) -> LaunchSignature:
        """Everything of ``launch`` but its addresses; the same object for equal ones."""

        def make() -> LaunchSignature:
            signature = LaunchSignature.of(launch)
            return signature.with_tile_maps(self.maps) if self.maps else signature

        return self._signatures.get_or_make(signature_key(launch), make)

    def link_at(
        self, signature: LaunchSignature, addresses: Sequence[int], names: tuple[str, ...] = ()
    ) -> LinkedProgram:
        """`link` of a launch of ``signature`` whose memory begins at ``addresses``, bytes.

        ``names``: for messages; those of ``signature`` if empty.
        """
        # Names belong to the key: a fault of a linked program names the memory it left.
        all_addresses = self._with_scratch(addresses)
        names = names or signature.names
        key = (signature, all_addresses, names)
        linked = self._linked.get(key)
        if linked is None:
            linked = self._link(signature, all_addresses, names)
            self._linked.put(key, linked)
        return linked

    def link_batch_at(
        self,
        signature: LaunchSignature,
        addresses: Int64Array,
        names: Sequence[tuple[str, ...]] = (),
    ) -> LinkedBatch:
        """Launches of ``signature`` whose memory begins at ``addresses``, [launch, address] bytes.

        ``names``: per launch, as for `link_at`. Raises what `link` of the first launch that cannot
        be linked raises.
        """
        scratch = np.array([b.address_bytes for b in self.reserve_scratch()], np.int64)
        rows = np.column_stack((addresses, np.tile(scratch, (len(addresses), 1))))
        sizes = np.array(self._templates_of(signature).sizes, np.int64)
        groups: list[BatchGroup] = []
        for first, last in equal_runs(movable_rows(rows, sizes), alias_rows(rows, sizes)):
            groups += self._groups(signature, rows[first:last], names[first:last])
        return LinkedBatch(groups)

    def _groups(
        self, signature: LaunchSignature, rows: Int64Array, names: Sequence[tuple[str, ...]]
    ) -> list[BatchGroup]:
        """Groups of launches whose memory, scratch included, is at ``rows`` and overlaps alike."""
        first_names = names[0] if names else signature.names
        template = self._template(signature, tuple(rows[0].tolist()), first_names)
        if template is not None and template.linked.code.movable:
            bases = np.ascontiguousarray(rows[:, list(template.address_of)])
            allocation_names = tuple(map(template.allocation_names, names))
            return [BatchGroup(template.linked, bases, allocation_names)]
        without_scratch = rows[:, : len(signature.slots)].tolist()
        pairs = zip(without_scratch, names or [signature.names] * len(rows), strict=True)
        return [
            BatchGroup(self.link_at(signature, tuple(row), row_names)) for row, row_names in pairs
        ]

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
        """What was linked of launches like this one, linked now if nothing was; None if memory at
        these addresses cannot be moved.
        """
        templates = self._templates_of(signature)
        if not is_movable(addresses, templates.sizes):
            return None
        aliases = alias_structure(addresses, templates.sizes)
        return templates.by_aliases.get_or_make(
            aliases, lambda: self._link_anew(signature, addresses, names)
        )

    def _link_anew(
        self, signature: LaunchSignature, addresses: tuple[int, ...], names: tuple[str, ...]
    ) -> _Template:
        count, sizes = len(signature.slots), self._templates_of(signature).sizes
        scratch = list(map(PoolBuffer, addresses[count:], sizes[count:]))
        binding, address_of = bind(
            self.bundle.program.parameters, signature, addresses[:count], names, scratch, self.maps
        )
        return _Template(self._linker.link(binding), address_of, addresses, names)

    def _templates_of(self, signature: LaunchSignature) -> _Templates:
        def make() -> _Templates:
            return _Templates((*signature.sizes, *(b.size_bytes for b in self.reserve_scratch())))

        return self._templates.get_or_make(signature, make)

    # --- running ------------------------------------------------------------------------------

    def launch(self, launch: Launch) -> None:
        """Run the bundle in the compiled driver.

        Raises LaunchError for missing arguments, DeviceFault for addresses or indices out of range.
        """
        self.device.executor.run(self.link(launch))

    def bind(self, launch: Launch) -> Binding:
        """Parameters, segments and memory of ``launch``; LaunchError when it is incomplete."""
        signature, scratch = self.signature_of(launch), self.reserve_scratch()
        memory = (launch.addresses, launch.names, scratch, self.maps)
        return bind(self.bundle.program.parameters, signature, *memory)[0]

    # --- memory of device_mem_allocate --------------------------------------------------------

    def reserve_scratch(self) -> tuple[PoolBuffer, ...]:
        """Memory of device_mem_allocate: reserved once, kept until `release_scratch`."""
        scratch = self._scratch
        if scratch is not None:
            return scratch
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
