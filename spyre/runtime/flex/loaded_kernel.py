"""A compiled kernel in program memory: binding, program correction and execution of its launches.

Program correction (pipeline RFC; runtime reference §5): the host writes the values of the
kernel's symbols (addresses, sizes, indices) into a correction tensor; DMA copies it to program
memory; the compute step reads it there and runs the kernel with these values. Every launch has one
correction tensor per iteration, so that one can be prepared while another computes. Launches by
address (`LoadedKernel.bind_at`) need none, because the host binds their symbols.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.spec import STICK_BYTES
from spyre.interrupts import interrupts
from spyre.layout import Int64Array
from spyre.lru_cache import LruCache
from spyre.mlir.program import Parameter
from spyre.runtime.arguments import KernelArguments, given_launch_spec
from spyre.runtime.flex.blocks import MemoryRange, SourceLines
from spyre.runtime.flex.steps import (
    DMA,
    NO_VALUES,
    Card,
    DeviceCompute,
    HostOperation,
    JobPlan,
    JobWork,
    LaunchPlan,
    bytes_to_device,
    require_card,
    require_tensors,
)
from spyre.runtime.kernel import Kernel, Launch, LaunchSignature, PoolBuffer, Runner
from spyre.runtime.memory import DeviceStorage, ProgramMemory, SpyreTensor
from spyre.runtime.program import owner_of

if TYPE_CHECKING:
    from spyre.runtime.tiling.execute import Tiler, TileSteps
    from spyre.runtime.tiling.tile_plan import TilePlan, TilingOptions

Shapes = tuple[tuple[int | str, ...], ...]
"""Host extents of each argument: numbers, or names of runtime sizes."""
ArgumentsOf = Callable[[Mapping[str, int]], KernelArguments]
"""The arguments of a kernel, for given values of its runtime sizes and index parameters."""
MAX_LAUNCH_PLANS = 1024
"""Launch plans that a kernel keeps, one per signature of its tensors."""


class LoadedKernel:
    """A kernel on ``card``. Any thread may bind launches; the compute engine's thread runs them.

    ``arguments_of``: its arguments, for given values of its runtime sizes and index parameters.
    ``binary`` begins with a header stick that identifies it; `load_plan` copies it to ``image``,
    its program memory. ``pool``: memory of its intermediates, ``pool_bytes`` long, allocated here
    and kept between launches; None for 0 bytes.
    """

    def __init__(
        self,
        card: Card,
        name: str,
        kernel: Kernel,
        arguments_of: ArgumentsOf,
        binary: bytes,
        pool_bytes: int = 0,
    ) -> None:
        self.card = card
        self.name = name
        self.kernel = kernel
        self.arguments_of = arguments_of
        self.image = card.allocate_program(len(binary))
        self.header = binary[:STICK_BYTES]
        self.pool: PoolBuffer | None = None
        if pool_bytes:
            self._pool_memory = card.allocate(pool_bytes)
            address = card.allocator.device_address(self._pool_memory.index)
            self.pool = PoolBuffer(address, pool_bytes)
        self._launch_plans: LruCache[tuple[object, ...], LaunchPlan] = LruCache(MAX_LAUNCH_PLANS)
        self._tilers: dict[frozenset[tuple[str, int]], Tiler] = {}
        self._lock = threading.Lock()

    def load_plan(self, binary: bytes) -> JobPlan:
        """The job that copies ``binary`` to its program memory."""
        content = np.frombuffer(binary, np.uint8)
        return bytes_to_device(content, self.image.address_bytes, f"binary of {self.name}")

    @cached_property
    def correction(self) -> Correction:
        return Correction(self.kernel.bundle.program.parameters)

    @cached_property
    def _named_shapes(self) -> Shapes:
        """The shapes of the launch spec if any size has a name, else ()."""
        spec = given_launch_spec(self.kernel.bundle)
        shapes = () if spec is None else tuple(argument.shape for argument in spec.args)
        return shapes if any(isinstance(n, str) for shape in shapes for n in shape) else ()

    @cached_property
    def plan(self) -> JobPlan:
        """The job plan: correction steps if the kernel has symbols, and the compute step."""
        compute = DeviceCompute(self)
        if not self.correction.names:
            return JobPlan(self.name, (compute,), self)
        return JobPlan(self.name, (*self.correction.steps(self.name), compute), self)

    @cached_property
    def bound_plan(self) -> JobPlan:
        """The job plan of launches whose symbols the host has bound: only the compute step."""
        return JobPlan(self.name, (DeviceCompute(self),), self)

    @cached_property
    def _header_memory(self) -> npt.NDArray[np.uint8]:
        """The first stick of its program memory."""
        return self.card.device.memory.view(self.image.address_bytes, STICK_BYTES)

    # --- binding ---------------------------------------------------------------------------------

    def bind(
        self,
        plan: JobPlan,
        card: Card,
        tensors: Sequence[SpyreTensor],
        options: TilingOptions | None = None,
        values: Mapping[str, int] = NO_VALUES,
    ) -> JobWork:
        """A launch over ``tensors``, one per argument in launch order, checked against them.

        Runtime sizes named by the launch spec are taken from the tensors (SPY873 if they differ);
        ``values``: other sizes, and index parameters, by name.
        """
        if card is not self.card:
            require_card(card, self.card, f"kernel {self.name}", self.card)
        if self._named_shapes:
            values = sizes_of_tensors(self._named_shapes, tensors, values)
        key = (
            options,
            tuple(values.items()) if values else (),
            *[tensor.signature for tensor in tensors],
        )
        launch_plan = self._launch_plans.get(key)
        if launch_plan is None:
            launch_plan = self._find_launch_plan(card, tensors, options, values)
            self._launch_plans.put(key, launch_plan)
        bases = tuple([tensor.resolved.address_bytes for tensor in tensors])
        if self.pool is not None:
            bases = (*bases, self.pool.address_bytes)
        work = JobWork(plan, card, tensors, launch_plan, bases)
        if launch_plan.tiles is not None:
            self._bind_tiles(work, launch_plan.tiles, tensors, values)
        return self._corrected(work)

    def bind_at(
        self,
        launch_plan: LaunchPlan,
        addresses: tuple[int, ...],
        keep_alive: Sequence[object] = (),
        runner: Runner | None = None,
        is_corrected: bool = False,
        origin: SourceLines | None = None,
    ) -> JobWork:
        """A launch by address: one pass over tensors at ``addresses`` (bytes), already checked.

        The host binds the symbols, so it needs no correction; ``is_corrected`` adds the correction
        steps anyway, for a recorded command stream. ``keep_alive``, ``runner``, ``origin``: as in
        `JobWork`.
        """
        plan = self.plan if is_corrected else self.bound_plan
        work = JobWork(plan, self.card, keep_alive, launch_plan, addresses, runner, origin)
        return self._corrected(work) if is_corrected else work

    def _corrected(self, work: JobWork) -> JobWork:
        if self.correction.names:
            work.correction = self.correction.take(work.card, work.iterations)
        return work

    def _find_launch_plan(
        self,
        card: Card,
        tensors: Sequence[SpyreTensor],
        options: TilingOptions | None,
        values: Mapping[str, int],
    ) -> LaunchPlan:
        """The plan of a launch. TilingError and LaunchError SPY850-SPY862 if there is none."""
        arguments = self.arguments_of(values)
        self._check(card, arguments, tensors)
        launch = self._launch(arguments, tensors, values)
        if _matches(arguments, launch):
            return LaunchPlan.of(self.kernel, launch)
        from spyre.runtime.tiling.execute import Tiler, TileSteps

        key = frozenset(launch.values.items())
        with self._lock:  # a Tiler is for one thread at a time
            tiler = self._tilers.get(key)
            if tiler is None:
                tiler = self._tilers[key] = Tiler(self.kernel, arguments, launch.values)
            tiles = tiler.plan(launch, options)
            if not tiles.is_tiled and all(tensor.map.is_identity for tensor in tiles.tensors):
                return LaunchPlan.of(self.kernel, launch)
            return _tiled_launch_plan(TileSteps(tiler, launch, tiles))

    def _launch(
        self, arguments: KernelArguments, tensors: Sequence[SpyreTensor], values: Mapping[str, int]
    ) -> Launch:
        pairs = zip(arguments.arguments, tensors, strict=True)
        names = {parameter.name for parameter in self.kernel.bundle.program.parameters}
        parameter_values = {name: value for name, value in values.items() if name in names}
        memory = {a.arg_index: tensor.resolved for a, tensor in pairs}
        return Launch(memory, self.pool, parameter_values)

    def _bind_tiles(
        self,
        work: JobWork,
        tiles: TilePlan,
        tensors: Sequence[SpyreTensor],
        values: Mapping[str, int],
    ) -> None:
        """Check the addresses of a tiled launch, and allocate its temporaries if it needs any."""
        from spyre.runtime.tiling.execute import TileSteps

        card, launch = work.card, self._launch(self.arguments_of(values), tensors, values)
        with self._lock:
            steps = TileSteps(self._tilers[frozenset(launch.values.items())], launch, tiles)
        if not tiles.needs_steps:
            return
        storages: list[DeviceStorage] = []

        def allocate(size_bytes: int) -> int:
            storages.append(card.allocate(size_bytes))
            return card.allocator.device_address(storages[-1].index)

        steps.allocate(allocate)
        work.use_steps(steps, storages)

    def _check(
        self, card: Card, arguments: KernelArguments, tensors: Sequence[SpyreTensor]
    ) -> None:
        expected = arguments.arguments
        if len(tensors) != len(expected):
            raise LaunchError(
                "SPY878",
                f"{self.name} takes {len(expected)} tensors",
                expected=", ".join(str(a.host_spec) for a in expected),
                found=f"{len(tensors)} tensors",
            )
        require_tensors(card, tensors)

    # --- running ---------------------------------------------------------------------------------

    def compute(self, work: JobWork, first: int, last: int) -> None:
        """Run iterations ``first`` to ``last`` (excluded) with the symbols in program memory."""
        content = self._header_memory
        if content.tobytes() != self.header:
            raise DeviceFault(
                "SPY881",
                f"program memory does not hold {self.name} any more",
                expected=f"the header of its binary at {self.image.address_bytes:#x}",
                found=content[:16].tobytes().hex(),
            )
        if first == last:
            return
        launch_plan = work.launch_plan
        assert launch_plan is not None
        if work.is_single:
            self._run_one(work, launch_plan.kernel, launch_plan.signature, work.bases)
            return
        addresses, signature = work.addresses(first, last), launch_plan.signature
        if work.correction is not None:
            # The card runs with the values that DMA wrote, not with those the host bound.
            rows = self.correction.read(work.card, work.correction, first, last)
            addresses = self.correction.addresses(signature, addresses, rows)
            signature = self.correction.signature(signature, rows[0])
        if work.steps is not None:
            work.steps.run(first, addresses, partial(self._run_one, work))
        elif last - first == 1:
            self._run_one(work, launch_plan.kernel, signature, tuple(addresses[0].tolist()))
        else:
            self._run_tiles(work, launch_plan.kernel, signature, addresses)

    def _run_one(
        self, work: JobWork, kernel: Kernel, signature: LaunchSignature, addresses: tuple[int, ...]
    ) -> None:
        assert work.launch_plan is not None
        device = work.card.device
        linked = kernel.link_at(signature, addresses, work.launch_plan.names)
        runner = work.runner or work.card.runner
        if runner is None:
            device.executor.run(linked)
        else:
            with interrupts.allowed():  # a runner may take long, for instance to verify
                work.result = runner(device, linked)

    def _run_tiles(
        self, work: JobWork, kernel: Kernel, signature: LaunchSignature, addresses: Int64Array
    ) -> None:
        if work.runner is not None or work.card.runner is not None:
            for row in addresses.tolist():
                self._run_one(work, kernel, signature, tuple(row))
            return
        groups = kernel.link_batch_at(signature, addresses)
        work.card.device.executor.run_batch(groups)

    def memory_ranges(self, work: JobWork, iteration: int) -> tuple[MemoryRange, ...]:
        """Memory of one compute control block: program, correction tensor, arguments, pool."""
        assert work.launch_plan is not None
        resolve = work.card.allocator.virtual_address
        ranges = [MemoryRange("program", resolve(self.image.address_bytes))]
        if work.correction is not None:
            ranges += self.correction.memory_ranges(work, iteration)
        addresses = work.addresses(iteration, iteration + 1)[0].tolist()
        pairs = zip(work.launch_plan.names, addresses, strict=True)
        return (*ranges, *(MemoryRange(name, resolve(address)) for name, address in pairs))


def _matches(arguments: KernelArguments, launch: Launch) -> bool:
    """True if the tensors have the shapes, dtypes and layouts the kernel was compiled for."""
    for expected in (*arguments.arguments, *(alias for alias, _ in arguments.aliases)):
        tensor = launch.arguments.get(expected.arg_index)
        if tensor is None or tensor.sizes != expected.shape:
            return False
        if tensor.dtype != expected.dtype_name:
            return False
        if tensor.layout is not expected.layout and tensor.layout != expected.layout:
            return False
    return True


def _tiled_launch_plan(steps: TileSteps) -> LaunchPlan:
    """The kernel retargeted to tiles, with the offset of every tile."""
    plan, kernel, launch = steps.plan, steps.kernel_of(), steps.launch
    signature = kernel.signature_of(steps.launch_of())
    column_of = {tensor.expected.arg_index: k for k, tensor in enumerate(plan.tensors)}
    offsets_bytes = np.zeros((plan.iterations, len(signature.indices)), np.int64)
    for column, index in enumerate(signature.indices):
        if index in column_of:
            offsets_bytes[:, column] = plan.offsets_bytes[:, column_of[index]]
    return LaunchPlan(kernel, signature, launch.names, launch.size_bytes, offsets_bytes, plan)


# --- runtime sizes ----------------------------------------------------------------------------


def sizes_of_tensors(
    shapes: Shapes, tensors: Sequence[SpyreTensor], given_values: Mapping[str, int]
) -> dict[str, int]:
    """``given_values`` and the sizes that ``shapes`` name, read from ``tensors``.

    LaunchError SPY873 if two values of a size differ. Tensors of another rank are skipped here; the
    launch rejects them.
    """
    values = dict(given_values)
    source = dict.fromkeys(given_values, "the values of the launch")
    for shape, tensor in zip(shapes, tensors, strict=False):
        if len(shape) != len(tensor.shape):
            continue
        for name, extent in zip(shape, tensor.shape, strict=True):
            if not isinstance(name, str):
                continue
            if values.setdefault(name, extent) != extent:
                message = f"runtime size {name} has two values"
                expected = f"{values[name]}, from {source[name]}"
                found = f"{extent}, from {tensor.name}"
                raise LaunchError("SPY873", message, expected=expected, found=found)
            source.setdefault(name, tensor.name)
    return values


# --- correction tensors -----------------------------------------------------------------------


class _Columns(msgspec.Struct, frozen=True):
    """The words of a correction tensor, for launches of one signature.

    ``row``: the tensor with every address 0. ``words``: word of each address symbol;
    ``addresses``: which address of the launch it holds. ``value_words``, ``value_names``: words and
    names of runtime sizes and indices.
    """

    row: Int64Array
    words: Int64Array
    addresses: Int64Array
    value_words: Int64Array
    value_names: tuple[str, ...]


CORRECTION = "correction"
"""Handle of the correction tensors on the host."""
MAX_FREE = 1024
"""Correction tensors a kernel keeps for later launches."""
SLAB = 64
"""Correction tensors it allocates at a time."""


class Correction:
    """The symbols of a kernel with ``parameters``, and its correction tensors. For any thread.

    A tensor has one int64 per symbol, in the order of the parameters: an address (of an argument or
    of the pool), a runtime size or an index. The simulator's binaries are bundles, so correction
    consists of the symbols' values (runtime reference §5). ``names``: of the symbols. ``indices``:
    argument index of each symbol, POOL, or None for a value.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.names = tuple(parameter.name for parameter in parameters)
        self.indices = tuple(map(owner_of, self.names))
        self._columns: WeakKeyDictionary[LaunchSignature, _Columns] = WeakKeyDictionary()
        self._free: list[ProgramMemory] = []

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of one correction tensor: whole sticks."""
        return -(-8 * len(self.names) // STICK_BYTES) * STICK_BYTES

    def rows(self, work: JobWork, first: int, last: int) -> Int64Array:
        """The correction tensors of iterations ``first`` to ``last`` (excluded) of a launch."""
        assert work.launch_plan is not None
        addresses = work.addresses(first, last)
        columns = self._columns_of(work.launch_plan.signature)
        rows = np.empty((len(addresses), columns.row.size), np.int64)
        rows[:] = columns.row
        rows[:, columns.words] = addresses[:, columns.addresses]
        return rows

    def addresses(
        self, signature: LaunchSignature, bound: Int64Array, rows: Int64Array
    ) -> Int64Array:
        """Addresses [launch, address] of launches whose correction tensors hold ``rows``.

        ``bound``: addresses that the host bound, used for arguments without a symbol.
        """
        columns = self._columns_of(signature)
        addresses = bound.copy()
        addresses[:, columns.addresses] = rows[:, columns.words]
        return addresses

    def signature(self, bound: LaunchSignature, row: Int64Array) -> LaunchSignature:
        """The signature of the launch that ``row`` describes: ``bound``, unless values differ."""
        columns = self._columns_of(bound)
        words = columns.value_words
        if not words.size or (row[words] == columns.row[words]).all():
            return bound
        values = dict(zip(columns.value_names, row[words].tolist(), strict=True))
        return replace(bound, values={**bound.values, **values})

    def _columns_of(self, signature: LaunchSignature) -> _Columns:
        columns = self._columns.get(signature)
        if columns is None:
            columns = self._columns[signature] = self._find_columns(signature)
        return columns

    def _find_columns(self, signature: LaunchSignature) -> _Columns:
        row = np.zeros(self.size_bytes // 8, np.int64)
        words, addresses = [], []
        values = {self.names.index(name): name for name in signature.values if name in self.names}
        for word, (name, index) in enumerate(zip(self.names, self.indices, strict=True)):
            if name in signature.values:
                row[word] = signature.values[name]
            elif index is not None and index in signature.indices:
                words.append(word)
                addresses.append(signature.indices.index(index))
        return _Columns(
            row,
            np.array(words, np.int64),
            np.array(addresses, np.int64),
            np.array([*values], np.int64),
            tuple(values.values()),
        )

    def take(self, card: Card, iterations: int) -> ProgramMemory:
        """Memory for the tensors of a launch, one after another."""
        size_bytes = self.size_bytes
        if iterations > 1:  # rare, and long compared with an allocation
            return card.allocate_program(size_bytes * iterations)
        try:
            return self._free.pop()
        except IndexError:
            # An allocation takes longer than a launch, so a slab is split into pieces that are
            # reused. It is freed with the last of its pieces.
            slab = card.allocate_program(size_bytes * SLAB).split(SLAB)
            self._free += slab[1:]
            return slab[0]

    def give_back(self, memory: ProgramMemory) -> None:
        """Keep the memory of an ended launch for another one, if it holds a single tensor."""
        # A long queue needs many tensors at once; beyond MAX_FREE they are freed.
        if memory.size_bytes == self.size_bytes and len(self._free) < MAX_FREE:
            self._free.append(memory)

    def read(self, card: Card, memory: ProgramMemory, first: int, last: int) -> Int64Array:
        """Tensors ``first`` to ``last`` (excluded) in program memory, [tensor, word]."""
        size_bytes = self.size_bytes
        address = memory.address_bytes + first * size_bytes
        content = card.device.memory.view(address, (last - first) * size_bytes)
        return content.view(np.int64).reshape(last - first, size_bytes // 8)

    def steps(self, name: str) -> tuple[HostOperation, DMA]:
        """The steps before the compute step of kernel ``name``."""
        host = HostOperation(self.rows, CORRECTION, self.size_bytes // 8, CORRECTION)
        label = f"{CORRECTION} of {name}"
        return host, DMA(_copy, self.memory_ranges, self.size_bytes, True, True, label)

    def memory_ranges(self, work: JobWork, iteration: int) -> tuple[MemoryRange, ...]:
        """Device memory of the correction tensor of an iteration."""
        assert work.correction is not None
        address = work.correction.address_bytes + iteration * self.size_bytes
        return (MemoryRange(CORRECTION, work.card.allocator.virtual_address(address)),)


def _copy(work: JobWork, first: int, last: int) -> None:
    assert work.correction is not None
    rows = work.buffers[CORRECTION][first:last]
    address = work.correction.address_bytes + first * rows.shape[1] * 8
    work.card.dma.write_bytes(address, rows.reshape(-1).view(np.uint8), CORRECTION)
