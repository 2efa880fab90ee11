"""Memory planning of a kernel: which buffers are placed in LX, which in the pool in HBM, and why.

A buffer may be placed in LX unless one of `RULES` refuses it (hardware reference §4.3, §4.7). The
result of a pointwise operation takes over the memory of an operand that it uses for the last time,
if both have the same size and device layout. Buffers that are made in the kernel and not placed in
LX share the pool, which is one launch argument in a separate segment. Both are packed by
:mod:`spyre.torch_backend.program.packing`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spyre.errors import DeviceOutOfMemory
from spyre.hw.spec import REGION_BYTES
from spyre.torch_backend.inductor.bundles.kernel_op import (
    Kernel,
    KernelLoop,
    KernelOp,
    UnimplementedOp,
)
from spyre.torch_backend.inductor.scratchpad.accesses import (
    AccessTrace,
    BufferAccess,
    CoreView,
    TraceStep,
    access_trace,
    first_is_write,
    live_range,
    misnamed,
    outlives,
)
from spyre.torch_backend.program import LiveBuffer, OpKind, pack

if TYPE_CHECKING:
    from rich.table import Table

Accesses = Sequence[tuple[int, BufferAccess]]
"""(step, access) pairs of one buffer, in program order."""
Names = Sequence[Sequence[str]]
"""Per operation of a kernel, the buffer of each of its tensors; see `access_trace`."""


# --- rules ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LxCandidate:
    """A buffer of a kernel, as rules see it. ``arguments``: buffers that are launch arguments."""

    name: str
    accesses: Accesses
    trace: AccessTrace
    arguments: Collection[str]

    @property
    def producer(self) -> TraceStep:
        """The operation that accesses it first."""
        return self.trace.steps[self.accesses[0][0]]

    def users(self) -> list[TraceStep]:
        """Return the operation of every access."""
        return [self.trace.steps[step] for step, _ in self.accesses]


def refusals(trace: AccessTrace, arguments: Collection[str] = ()) -> dict[str, str | None]:
    """Return, per buffer in the order of first use, why it may not be placed in LX, or None."""
    return {
        name: _refusal(LxCandidate(name, accesses, trace, arguments))
        for name, accesses in trace.accesses().items()
    }


def _refusal(candidate: LxCandidate) -> str | None:
    return next((why for rule in RULES if (why := rule(candidate)) is not None), None)


def _is_argument(c: LxCandidate) -> str | None:
    return "is an argument of the kernel" if c.name in c.arguments else None


def _is_read_first(c: LxCandidate) -> str | None:
    return None if first_is_write(c.accesses) else f"{c.producer.name} reads it before it is made"


def _is_used_once(c: LxCandidate) -> str | None:
    return "is used by one operation only" if len({s for s, _ in c.accesses}) < 2 else None


def _is_partial_sum(c: LxCandidate) -> str | None:
    split = (op for op in c.users() if c.name in op.writes and op.splits_reduction)
    return next((f"cores share the terms that {op.name} sums into it" for op in split), None)


def _needs_hbm(c: LxCandidate) -> str | None:
    in_lx = (OpKind.POINTWISE, OpKind.REDUCTION, OpKind.MATMUL)
    outside = (op for op in c.users() if op.kind not in in_lx)
    return next((f"{op.name} works on HBM" for op in outside), None)


def _moves(c: LxCandidate) -> str | None:
    moved = (s for s, access in c.accesses if access.moves)
    return next((f"a loop moves what {c.trace.steps[s].name} uses of it" for s in moved), None)


def _has_no_core_view(c: LxCandidate) -> str | None:
    for step, access in c.accesses:
        if isinstance(access.view, str):
            return f"in {c.trace.steps[step].name} it {access.view}"
    return None


def _is_divided_differently(c: LxCandidate) -> str | None:
    first, producer = c.accesses[0][1], c.producer
    for step, access in c.accesses:
        name = c.trace.steps[step].name
        if access.device_dtype != first.device_dtype:
            return f"{producer.name} makes it as {first.device_dtype}, {name} reads another format"
        if access.view != first.view:
            return f"per core {producer.name} makes {first.view}, {name} uses {access.view}"
    return None


RULES: tuple[Callable[[LxCandidate], str | None], ...] = (
    _is_argument,
    _is_read_first,
    _is_used_once,
    _is_partial_sum,
    _needs_hbm,
    _moves,
    _has_no_core_view,
    _is_divided_differently,
)
"""Each returns a reason, or None; the reason of the first rule that refuses is reported."""


# --- results in place of operands -------------------------------------------------------------


def in_place_parents(trace: AccessTrace, eligible: Collection[str]) -> dict[str, str]:
    """Return, per result that may be made in place, the operand whose memory it takes over.

    ``eligible``: the buffers that may be placed in LX; only these are paired. Each operand is used
    once, and a result takes the first operand that fits.
    """
    by_name = trace.accesses()
    accesses = {name: by_name[name] for name in eligible}
    parents: dict[str, str] = {}
    for step, operation in enumerate(trace.steps):
        if operation.kind is not OpKind.POINTWISE:
            continue
        dying = _dying(trace, accesses, step)
        for child in _born(trace, accesses, step):
            fitting = (n for n in dying if _match(operation.accesses, n, child))
            if (parent := next(fitting, None)) is not None:
                parents[child] = parent
                dying.remove(parent)
    return parents


def _born(trace: AccessTrace, accesses: Mapping[str, Accesses], step: int) -> list[str]:
    """Return the results whose lifetime begins at ``step``."""
    written = [n for n in trace.steps[step].writes if n in accesses]
    return [
        name
        for name in written
        if live_range(accesses[name], trace.loops)[0] == step and first_is_write(accesses[name])
    ]


def _dying(trace: AccessTrace, accesses: Mapping[str, Accesses], step: int) -> list[str]:
    """Return the operands whose lifetime ends at ``step``, and that no later iteration reads."""
    around = [loop for loop in trace.loops if loop[0] <= step < loop[1]]
    return [
        name
        for name in trace.steps[step].reads
        if name in accesses
        and live_range(accesses[name], trace.loops)[1] == step + 1
        and not any(outlives(accesses[name], loop) for loop in around)
    ]


def _match(accesses: Sequence[BufferAccess], parent: str, child: str) -> bool:
    """Return True if the operation accesses both buffers element by element at equal positions."""
    seen = {
        (a.view, a.device_dtype, a.coordinates, a.size_bytes)
        for a in accesses
        if a.buffer in (parent, child)
    }
    return len(seen) == 1


# --- plans ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScratchpadPlan:
    """Placement of a kernel's buffers in LX.

    ``buffers``: those that may be placed in LX, in the order of first use, with their sizes in one
    core. ``offsets``: bytes, equal on all cores; None for a buffer that does not fit. ``refused``:
    the reason for each other buffer. ``capacity_bytes``: of one core's LX.
    """

    buffers: tuple[LiveBuffer[str], ...]
    offsets: Mapping[str, int | None]
    refused: Mapping[str, str]
    capacity_bytes: int

    @property
    def placed(self) -> dict[str, int]:
        """Offsets of the buffers in LX, in bytes."""
        return {name: offset for name, offset in self.offsets.items() if offset is not None}


def plan_scratchpad(
    kernel: Kernel, names: Names, arguments: Collection[str], capacity_bytes: int
) -> ScratchpadPlan:
    """Place the intermediate results of a kernel in LX; its work is divided already.

    ``kernel``: operations in program order; those of several kernels may follow one another, since
    LX keeps its contents between launches. ``arguments``: buffers that stay in HBM.
    ``capacity_bytes``: of one core's LX. BundleError SPY988 for names that do not fit.
    """
    trace = access_trace(kernel, names)
    why, accesses = refusals(trace, arguments), trace.accesses()
    eligible = [name for name in accesses if why[name] is None]
    parents = in_place_parents(trace, eligible)
    buffers = tuple(
        LiveBuffer(
            name,
            _bytes_per_core(accesses[name]),
            *live_range(accesses[name], trace.loops),
            parents.get(name),
        )
        for name in eligible
    )
    refused = {name: text for name, text in why.items() if text is not None}
    return ScratchpadPlan(buffers, pack(buffers, capacity_bytes), refused, capacity_bytes)


def _bytes_per_core(accesses: Accesses) -> int:
    view = accesses[0][1].view
    assert isinstance(view, CoreView)
    return view.size_bytes


def pool_offsets(
    kernel: Kernel,
    names: Names,
    arguments: Collection[str],
    in_lx: Collection[str] = (),
    limit_bytes: int = REGION_BYTES,
) -> dict[str, int]:
    """Return the offset in the pool, in bytes, of each buffer that is made in the kernel and not
    placed in LX. DeviceOutOfMemory SPY987 beyond ``limit_bytes``; BundleError SPY988.
    """
    trace = access_trace(kernel, names)
    buffers = [
        LiveBuffer(name, max(a.size_bytes for _, a in uses), *live_range(uses, trace.loops))
        for name, uses in trace.accesses().items()
        if name not in arguments and name not in in_lx and first_is_write(uses)
    ]
    return pack_pool(buffers, limit_bytes)


def pack_pool(
    buffers: Sequence[LiveBuffer[str]], limit_bytes: int = REGION_BYTES
) -> dict[str, int]:
    """Return the offset of every buffer; DeviceOutOfMemory SPY987 if one does not fit."""
    offsets: dict[str, int] = {}
    for name, offset in pack(buffers, limit_bytes).items():
        if offset is None:
            raise _overflow(name, buffers, limit_bytes)
        offsets[name] = offset
    return offsets


def _overflow(name: str, buffers: Sequence[LiveBuffer[str]], limit_bytes: int) -> DeviceOutOfMemory:
    buffer = next(b for b in buffers if b.name == name)
    others = sum(b.size_bytes for b in buffers if b.start <= buffer.start < b.end and b != buffer)
    return DeviceOutOfMemory(
        "SPY987",
        f"{name} does not fit into the pool of intermediate results",
        expected=f"at most {limit_bytes} bytes alive at operation {buffer.start}",
        found=f"{buffer.size_bytes} bytes besides {others} of others",
        hint="use smaller batches, or tile the kernel",
    )


def with_offsets(kernel: Kernel, names: Names, memory: str, offsets: Mapping[str, int]) -> Kernel:
    """Return ``kernel`` with the buffers in ``offsets`` placed in ``memory`` ("lx" or "pool").

    Tensors of these buffers are no longer arguments of the kernel (-1); other arguments keep their
    numbers. BundleError SPY988 for names that do not fit.
    """
    rest = iter(names)
    placed = tuple(_placed(kernel, rest, memory, offsets))
    if next(rest, None) is not None:
        raise misnamed("the kernel", "one row of names per operation", "more rows")
    return placed


def _placed(
    kernel: Kernel, names: Iterator[Sequence[str]], memory: str, offsets: Mapping[str, int]
) -> Iterator[KernelOp | UnimplementedOp | KernelLoop]:
    for op in kernel:
        if isinstance(op, KernelLoop):
            yield replace(op, body=tuple(_placed(op.body, names, memory, offsets)))
            continue
        row = next(names, None)
        if row is None:
            raise misnamed("the kernel", "one row of names per operation", "fewer rows")
        if isinstance(op, UnimplementedOp):
            yield op
            continue
        if len(op.tensors) != len(row):
            raise misnamed(op.name, f"{len(op.tensors)} arguments", f"{len(row)} names")
        tensors = tuple(
            replace(tensor, argument=-1, memory=memory, start_bytes=offsets[name])
            if name in offsets
            else tensor
            for tensor, name in zip(op.tensors, row, strict=True)
        )
        yield replace(op, tensors=tensors)


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
