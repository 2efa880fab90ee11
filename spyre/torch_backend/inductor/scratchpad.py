"""Memory planning of a kernel: which buffers are placed in LX, which in the pool in HBM, and why.

A buffer may be placed in LX unless one of `RULES` refuses it (hardware reference §4.3, §4.7). All
operations have to divide it over the cores alike, since a core reads only its own scratchpad
(`core_view`). The result of a pointwise operation takes over the memory of an operand that it uses
for the last time, if both have the same size and device layout. Buffers that are made in the kernel
and not placed in LX share the pool, which is one launch argument in a separate segment. Both are
packed by `spyre.torch_backend.program.pack`. Where LX is too small for all, plans that leave one
buffer out are compared by the modelled time of the kernel. All functions are pure; nothing imports
torch.

Operations are numbered in program order as steps, those in loops once. Loops are ranges of steps
(the reference unrolls them), because a buffer that enters or leaves a loop, or carries a value from
one iteration to the next, is alive during the whole loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from math import prod
from operator import mul
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from spyre.errors import DeviceOutOfMemory
from spyre.hw.cost import CLOSE, MachineSpec, default_machine, kernel_ns, machine_with
from spyre.hw.spec import REGION_BYTES, STICK_BYTES
from spyre.torch_backend.inductor.bundles.kernel_op import (
    LX,
    DeviceDim,
    Kernel,
    KernelLoop,
    KernelOp,
    KernelTensor,
)
from spyre.torch_backend.inductor.division import counts_of
from spyre.torch_backend.program import Ints, LiveBuffer, OpKind, pack

if TYPE_CHECKING:
    from rich.table import Table

# --- accesses -------------------------------------------------------------------------------------


class BufferAccess(msgspec.Struct, frozen=True):
    """Tensor ``number`` of operation ``op``, which is step ``step`` of its kernel.

    ``moves``: a loop advances its address.
    """

    step: int
    op: KernelOp
    number: int
    moves: bool

    @property
    def tensor(self) -> KernelTensor:
        return self.op.tensors[self.number]

    @property
    def is_write(self) -> bool:
        return self.op.is_output(self.number)


Accesses = Sequence[BufferAccess]
"""The accesses of one buffer, in program order."""
Loops = Sequence[tuple[int, int]]
"""[begin, end) of every loop's steps, outer loops first."""


def accesses_of(kernel: Kernel) -> tuple[dict[str, list[BufferAccess]], Loops]:
    """Return the accesses of each buffer, buffers in the order of first use, and the loops."""
    by_name: dict[str, list[BufferAccess]] = {}
    loops: list[tuple[int, int]] = []

    def visit(body: Kernel, step: int, depth: int) -> int:
        for op in body:
            if isinstance(op, KernelLoop):
                place = len(loops)
                end = visit(op.body, step, depth + 1)
                loops.insert(place, (step, end))
                step = end
                continue
            for number, tensor in enumerate(op.tensors):
                access = BufferAccess(step, op, number, depth > 0 and any(tensor.strides))
                by_name.setdefault(tensor.buffer, []).append(access)
            step += 1
        return step

    visit(kernel, 0, 0)
    return by_name, loops


def first_is_write(accesses: Accesses) -> bool:
    """Return True if the first step that touches the buffer does not read it."""
    return all(access.is_write for access in accesses if access.step == accesses[0].step)


def live_range(accesses: Accesses, loops: Loops) -> tuple[int, int]:
    """Return the steps [start, end) during which a buffer is alive: from its first to its last
    access, and all of every loop that it outlives.
    """
    start, end = accesses[0].step, accesses[-1].step + 1
    for loop in loops:
        if outlives(accesses, loop):
            start, end = min(start, loop[0]), max(end, loop[1])
    return start, end


def outlives(accesses: Accesses, loop: tuple[int, int]) -> bool:
    """Return True if the buffer must stay alive through all iterations of ``loop``.

    That is so if it is also accessed outside of the loop, if an iteration reads it before writing
    it, or if the loop advances its address.
    """
    inside = [access for access in accesses if loop[0] <= access.step < loop[1]]
    if not inside or len(inside) < len(accesses):
        return bool(inside)
    return not first_is_write(inside) or any(access.moves for access in inside)


# --- the parts of the cores -----------------------------------------------------------------------


class CoreView(msgspec.Struct, frozen=True):
    """Division of a tensor over the cores, per device dim above the stick, without dims of one
    step. Neighbouring dims that the cores divide as one dim count as one.

    ``extents``: steps in one core's slice. ``splits``: number of slices. ``strides``: core c has
    slice ``c // stride % split`` (0 if the dim is not split). ``cores``: number of cores.
    """

    extents: Ints
    splits: Ints
    strides: Ints
    cores: int

    @property
    def size_bytes(self) -> int:
        """Bytes of one core's slice, in whole sticks."""
        return prod(self.extents) * STICK_BYTES

    def __str__(self) -> str:
        dims = (
            f"{extent}×{split}" + (f"/{stride}" if split > 1 else "")
            for extent, split, stride in zip(self.extents, self.splits, self.strides, strict=True)
        )
        return f"[{', '.join(dims)}] on {self.cores} cores"


def core_view(op: KernelOp, number: int) -> CoreView | str:
    """Return how tensor ``number`` is divided over the cores, or why LX cannot hold it.

    LX can hold it if one dim of the operation walks each device dim from end to end.
    """
    device_dims = op.device_dims[number]
    if (why := _cut_stick(op, number, device_dims)) is not None:
        return why
    # per dim, the distance in core numbers between consecutive slices
    steps = accumulate((op.splits[dim] for dim in op.core_order), mul, initial=1)
    strides = dict(zip(op.core_order, steps, strict=False))
    shares: list[_Share] = []
    for dim in device_dims:
        share = _share(op, number, dim, strides)
        if isinstance(share, str):
            return share
        shares.append(share)
    divided = _merged(share for share in shares if share[:2] != (1, 1))
    extents, splits, distances = zip(*divided, strict=True) if divided else ((), (), ())
    return CoreView(extents, splits, distances, prod(op.splits))


_Share = tuple[int, int, int]
"""(extent per core, slices, stride in cores) of a device dim."""


def _merged(shares: Iterable[_Share]) -> list[_Share]:
    """The dims with neighbours as one dim where each core's slice of both is one of that: several
    operations may see one dim where others see two.
    """
    merged: list[_Share] = []
    for extent, split, stride in shares:
        if merged and split == 1:
            outer = merged[-1]
            merged[-1] = (outer[0] * extent, *outer[1:])
        elif merged and merged[-1][0] == 1 and merged[-1][2] == stride * split:
            merged[-1] = (extent, merged[-1][1] * split, stride)
        else:
            merged.append((extent, split, stride))
    return merged


def _share(op: KernelOp, number: int, dim: DeviceDim, strides: Mapping[int, int]) -> _Share | str:
    """Return the share of a device dim, or a reason why there is none."""
    if dim.first or len(dim.walked) > 1:
        coordinate = op.coordinate(number, dim)
        return f"has the coordinate {coordinate}, which is not one symbol"
    if not dim.walked:
        if dim.size == 1:
            return dim.size, 1, 0
        return f"is touched in one of {dim.size} steps only"
    ((walked, unit),) = dim.walked
    symbol, split = op.symbols[walked], op.splits[walked]
    steps = -(-op.extents[walked] // unit)
    if steps != dim.size:
        return f"is touched in {steps} of {dim.size} steps along {symbol}"
    if steps % split:
        return f"is cut unevenly along {symbol}: {steps} steps over {split} cores"
    return steps // split, split, strides[walked] if split > 1 else 0


def _cut_stick(op: KernelOp, number: int, dims: Sequence[DeviceDim]) -> str | None:
    """Return a reason if several cores share the lanes of one stick."""
    lane = op.tensors[number].lane
    if lane < 0 or op.splits[lane] == 1 or any(k == lane for d in dims for k, _ in d.walked):
        return None
    return f"is cut along {op.symbols[lane]} within a stick"


# --- rules ----------------------------------------------------------------------------------------


def refusals(buffers: Mapping[str, Accesses]) -> dict[str, str | None]:
    """Return, per buffer, why it may not be placed in LX, or None."""
    return {
        name: next((why for rule in RULES if (why := rule(accesses)) is not None), None)
        for name, accesses in buffers.items()
    }


def _is_argument(accesses: Accesses) -> str | None:
    return "is an argument of the kernel" if accesses[0].tensor.argument >= 0 else None


def _is_read_first(accesses: Accesses) -> str | None:
    if first_is_write(accesses):
        return None
    return f"{accesses[0].op.name} reads it before it is made"


def _is_used_once(accesses: Accesses) -> str | None:
    return "is used by one operation only" if len({a.step for a in accesses}) < 2 else None


def _is_partial_sum(accesses: Accesses) -> str | None:
    split = (a.op.name for a in accesses if a.is_write and a.op.split_reductions)
    return next((f"cores share the terms that {name} sums into it" for name in split), None)


def _needs_hbm(accesses: Accesses) -> str | None:
    in_lx = (OpKind.POINTWISE, OpKind.REDUCTION, OpKind.MATMUL)
    return next((f"{a.op.name} works on HBM" for a in accesses if a.op.kind not in in_lx), None)


def _moves(accesses: Accesses) -> str | None:
    moved = (a.op.name for a in accesses if a.moves)
    return next((f"a loop moves what {name} uses of it" for name in moved), None)


def _has_no_core_view(accesses: Accesses) -> str | None:
    views = ((a.op.name, core_view(a.op, a.number)) for a in accesses)
    return next((f"in {name} it {view}" for name, view in views if isinstance(view, str)), None)


def _has_other_format(accesses: Accesses) -> str | None:
    first = accesses[0]
    others = (a.op.name for a in accesses if a.tensor.format != first.tensor.format)
    made = f"{first.op.name} makes it as {first.tensor.format}"
    return next((f"{made}, {name} reads another format" for name in others), None)


def _is_divided_differently(accesses: Accesses) -> str | None:
    first = accesses[0]
    made = core_view(first.op, first.number)
    views = ((a.op.name, core_view(a.op, a.number)) for a in accesses)
    differ = (f"{name} uses {view}" for name, view in views if view != made)
    return next((f"per core {first.op.name} makes {made}, {text}" for text in differ), None)


_Rule = Callable[[Accesses], str | None]
UNDIVIDED_RULES: tuple[_Rule, ...] = (
    *(_is_argument, _is_read_first, _is_used_once),
    *(_has_other_format, _needs_hbm, _moves),
)
"""Rules that do not depend on how the operations are divided."""
RULES = (*UNDIVIDED_RULES, _is_partial_sum, _has_no_core_view, _is_divided_differently)
"""Each returns a reason, or None; the reason of the first rule that refuses is reported."""


# --- plans ----------------------------------------------------------------------------------------


def in_place_parents(buffers: Mapping[str, Accesses], loops: Loops) -> dict[str, str]:
    """Return, per result that may be made in place, the operand whose memory it takes over.

    ``buffers``: those that may be placed in LX; only these are paired. A result takes the first
    operand that fits.
    """
    parents: dict[str, str] = {}
    for child, accesses in buffers.items():
        step, op = accesses[0].step, accesses[0].op
        is_born = first_is_write(accesses) and live_range(accesses, loops)[0] == step
        if op.kind is not OpKind.POINTWISE or not is_born:
            continue
        operands = (t.buffer for t in op.inputs if t.buffer in buffers)
        dying = (name for name in operands if _dies(buffers[name], step, loops))
        if (parent := next((n for n in dying if _match(op, n, child)), None)) is not None:
            parents[child] = parent
    return parents


def _dies(accesses: Accesses, step: int, loops: Loops) -> bool:
    """Return True if the buffer's lifetime ends at ``step``, and no later iteration reads it."""
    around = (loop for loop in loops if loop[0] <= step < loop[1])
    ends = live_range(accesses, loops)[1] == step + 1
    return ends and not any(outlives(accesses, loop) for loop in around)


def _match(op: KernelOp, parent: str, child: str) -> bool:
    """Return True if the operation accesses both buffers element by element at equal positions."""
    seen = {
        (
            core_view(op, number),
            tensor.format,
            tuple((dim.walked, dim.first) for dim in op.device_dims[number]),
            tensor.lane,
            op.buffer_bytes(number),
        )
        for number, tensor in enumerate(op.tensors)
        if tensor.buffer in (parent, child)
    }
    return len(seen) == 1


Offsets = Mapping[str, int | None]


class ScratchpadPlan(msgspec.Struct, frozen=True):
    """Placement of a kernel's buffers in LX.

    ``buffers``: those that may be placed in LX, in the order of first use, with their sizes in one
    core. ``offsets``: bytes, equal on all cores; None for a buffer that does not fit. ``refused``:
    the reason for each other buffer. ``capacity_bytes``: of one core's LX. ``compared``: text
    on other plans, "" if all buffers fit.
    """

    buffers: tuple[LiveBuffer[str], ...]
    offsets: Mapping[str, int | None]
    refused: Mapping[str, str]
    capacity_bytes: int
    compared: str = ""

    @property
    def placed(self) -> dict[str, int]:
        """Offsets of the buffers in LX, in bytes."""
        return {name: offset for name, offset in self.offsets.items() if offset is not None}


def plan_scratchpad(
    kernel: Kernel, capacity_bytes: int, lx_fraction: float | None = None
) -> ScratchpadPlan:
    """Place the intermediate results of a kernel in LX; its work is divided already.

    ``kernel``: operations in program order; those of several kernels may follow one another, since
    LX keeps its contents between launches. ``capacity_bytes``: of one core's LX; ``lx_fraction``:
    the part of it that the backend uses, for the modelled times.
    """
    accesses, loops = accesses_of(kernel)
    why = refusals(accesses)
    eligible = {name: uses for name, uses in accesses.items() if why[name] is None}
    parents = in_place_parents(eligible, loops)
    views = {name: core_view(uses[0].op, uses[0].number) for name, uses in eligible.items()}
    buffers = tuple(
        LiveBuffer(name, view.size_bytes, *live_range(eligible[name], loops), parents.get(name))
        for name, view in views.items()
        if isinstance(view, CoreView)  # as `_has_no_core_view` makes sure
    )
    refused = {name: text for name, text in why.items() if text is not None}
    offsets: Offsets = pack(buffers, capacity_bytes)
    compared = ""
    if None in offsets.values():
        plan_ns = plan_timer(kernel, machine_with(default_machine(), lx_fraction))
        offsets, compared = _best_offsets(buffers, offsets, capacity_bytes, plan_ns)
    return ScratchpadPlan(buffers, offsets, refused, capacity_bytes, compared)


MOST_PLANS = 64
"""Plans compared for one kernel."""


def _best_offsets(
    buffers: Sequence[LiveBuffer[str]],
    first: Offsets,
    capacity_bytes: int,
    plan_ns: Callable[[Offsets], float],
) -> tuple[Offsets, str]:
    """The plan with the least modelled time that leaving out buffers one by one, for others, leads
    to, from the one in the order of first use; and a line about it.
    """
    best, best_ns, out, tried = first, plan_ns(first), frozenset[str](), 1
    first_ns, is_better = best_ns, True
    while is_better:
        is_better, left_out = False, out
        for buffer in buffers:
            if tried == MOST_PLANS or best[buffer.name] is None:
                continue
            tried += 1
            less = left_out | {buffer.name}
            kept = [b for b in buffers if b.name not in less]
            offsets = dict.fromkeys(less, None) | pack(kept, capacity_bytes)
            makes_room = any(at is not None and best[n] is None for n, at in offsets.items())
            if makes_room and (time_ns := plan_ns(offsets)) < best_ns:
                best, best_ns, out, is_better = offsets, time_ns, less, True
    text = f"{tried} plans compared: operations take {best_ns / 1e3:,.4g} us"
    if out:
        close = ", too close to call" if first_ns < (1.0 + CLOSE) * best_ns else ""
        text += f", and {first_ns / 1e3:,.4g} in the order of first use{close}"
    return {b.name: best[b.name] for b in buffers}, text


def plan_timer(kernel: Kernel, machine: MachineSpec) -> Callable[[Offsets], float]:
    """The modelled time of a kernel's operations by the plan, nanoseconds. A loop of unknown count
    counts once.
    """

    def steps(body: Kernel, runs: int) -> Iterator[tuple[KernelOp, int]]:
        for op in body:
            if isinstance(op, KernelLoop):
                yield from steps(op.body, runs * op.count if isinstance(op.count, int) else runs)
            else:
                yield op, runs

    @cache
    def step_ns(number: int, in_lx: frozenset[str]) -> float:
        op, runs = operations[number]
        return kernel_ns([counts_of(op, in_lx, runs)], machine).total_ns

    def plan_ns(offsets: Offsets) -> float:
        placed = {name for name, offset in offsets.items() if offset is not None}
        return sum(step_ns(k, names & placed) for k, names in enumerate(buffers))

    operations = list(steps(kernel, 1))
    buffers = [frozenset(tensor.buffer for tensor in op.tensors) for op, _ in operations]
    return plan_ns


def pool_offsets(kernel: Kernel) -> dict[str, int]:
    """Return the offset in the pool, in bytes, of each buffer that is made in the kernel and not
    placed in LX. DeviceOutOfMemory SPY987 beyond one segment.
    """
    accesses, loops = accesses_of(kernel)
    buffers = [
        LiveBuffer(name, max(a.op.buffer_bytes(a.number) for a in uses), *live_range(uses, loops))
        for name, uses in accesses.items()
        if uses[0].tensor.argument < 0 and uses[0].tensor.memory != LX and first_is_write(uses)
    ]
    return pack_pool(buffers)


def pack_pool(buffers: Sequence[LiveBuffer[str]]) -> dict[str, int]:
    """Return the offset of every buffer; DeviceOutOfMemory SPY987 if one does not fit."""
    offsets = pack(buffers, REGION_BYTES)
    for buffer in buffers:
        if offsets[buffer.name] is None:
            raise _overflow(buffer, buffers)
    return {name: offset for name, offset in offsets.items() if offset is not None}


def _overflow(buffer: LiveBuffer[str], buffers: Sequence[LiveBuffer[str]]) -> DeviceOutOfMemory:
    others = sum(b.size_bytes for b in buffers if b.start <= buffer.start < b.end and b != buffer)
    return DeviceOutOfMemory(
        "SPY987",
        f"{buffer.name} does not fit into the pool of intermediate results",
        expected=f"at most {REGION_BYTES} bytes alive at operation {buffer.start}",
        found=f"{buffer.size_bytes} bytes besides {others} of others",
        hint="use smaller batches, or tile the kernel",
    )


def with_offsets(kernel: Kernel, memory: str, offsets: Mapping[str, int]) -> Kernel:
    """Return ``kernel`` with the buffers in ``offsets`` placed in ``memory`` ("lx" or "pool")."""
    placed: list[KernelOp | KernelLoop] = []
    for op in kernel:
        if isinstance(op, KernelLoop):
            placed.append(replace(op, body=tuple(with_offsets(op.body, memory, offsets))))
            continue
        tensors = tuple(
            replace(tensor, argument=-1, memory=memory, start_bytes=offsets[tensor.buffer])
            if tensor.buffer in offsets
            else tensor
            for tensor in op.tensors
        )
        placed.append(replace(op, tensors=tensors))
    return tuple(placed)


# --- report -----------------------------------------------------------------------------------


def report_text(plan: ScratchpadPlan, width: int = 120) -> str:
    """Return a summary of ``plan`` and a table of its buffers, at most ``width`` columns wide."""
    from rich.console import Console

    sizes = {b.name: b.size_bytes for b in plan.buffers}
    peak = max((offset + sizes[name] for name, offset in plan.placed.items()), default=0)
    spilled = sum(size for name, size in sizes.items() if name not in plan.placed)
    console = Console(width=width, color_system=None, highlight=False, markup=False)
    with console.capture() as captured:
        total = len(plan.buffers) + len(plan.refused)
        console.print(f"LX plan: {len(plan.placed)} of {total} buffers in LX")
        console.print(f"peak {peak:,} of {plan.capacity_bytes:,} bytes per core")
        console.print(f"{spilled:,} bytes did not fit")
        if plan.compared:
            console.print(plan.compared)
        if total:
            console.print(_table(plan))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).rstrip() + "\n"


def _table(plan: ScratchpadPlan) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False)
    for title in ("buffer", "bytes per core", "offset", "alive", "why"):
        right = title in ("bytes per core", "offset")
        table.add_column(title, justify="right" if right else "left", no_wrap=title != "why")
    for b in plan.buffers:
        offset, parent = plan.offsets[b.name], b.in_place_of
        why = "does not fit" if offset is None else ""
        if offset is not None and parent is not None and plan.offsets.get(parent) == offset:
            why = f"in place of {parent}"
        text = "HBM" if offset is None else f"{offset:,}"
        table.add_row(b.name, f"{b.size_bytes:,}", text, f"{b.start}-{b.end - 1}", why)
    for name, why in plan.refused.items():
        table.add_row(name, "", "HBM", "", why)
    return table
