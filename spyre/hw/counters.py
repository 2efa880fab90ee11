"""What an operation moves and computes: bytes per operand and memory, multiply-adds, elements.

Pure functions of a :class:`CorePlan`; nothing is measured while a program runs. Every core counts
the sticks it touches itself, once each, so a stick that several cores read counts several times;
what crosses the memory interface and the ring depends on where the cores' shares lie and is added
by :mod:`.execute_counters`. Reports, the cost models and ``spyre-run`` read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from spyre.hw.access import Access, per_core
from spyre.hw.core_plan import CorePlan
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.footprint import RESTICKIFY, window_of, window_span
from spyre.mlir.operation import Component, Indirection, Operation


@dataclass(frozen=True, slots=True)
class OperandTraffic:
    """Bytes all cores together move for one operand of one execute."""

    tensor: str
    component: Component
    is_output: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Work of one execute, or a sum of several.

    ``multiply_adds`` run on the pt array (matmul, convolution), ``element_operations`` on the
    sfp: one per point of the iteration space, whatever the operation. Byte counts are sums over
    cores. ``rdmem_bytes`` and ``wrmem_bytes`` are what crosses the memory interface (aiu-smi's
    names): a stick several cores read at once, or write the sum of, counts once. ``ring_bytes``
    leave a core for another one, ``ring_byte_hops`` counts each once per link. ``executions``:
    trips of the loops around the execute.
    """

    hbm_read_bytes: int = 0
    hbm_written_bytes: int = 0
    lx_read_bytes: int = 0
    lx_written_bytes: int = 0
    multiply_adds: int = 0
    element_operations: int = 0
    rdmem_bytes: int = 0
    wrmem_bytes: int = 0
    ring_bytes: int = 0
    ring_byte_hops: int = 0
    executions: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(a + b for a, b in zip(self.values, other.values, strict=True)))

    def times(self, count: int) -> Counters:
        """The work of ``count`` equal executes."""
        return Counters(*(count * value for value in self.values))

    @property
    def values(self) -> tuple[int, ...]:
        """All counts in field order."""
        return (
            self.hbm_read_bytes,
            self.hbm_written_bytes,
            self.lx_read_bytes,
            self.lx_written_bytes,
            self.multiply_adds,
            self.element_operations,
            self.rdmem_bytes,
            self.wrmem_bytes,
            self.ring_bytes,
            self.ring_byte_hops,
            self.executions,
        )

    @property
    def sticks(self) -> int:
        """Sticks cores move to and from HBM and LX."""
        return (
            self.hbm_read_bytes
            + self.hbm_written_bytes
            + self.lx_read_bytes
            + self.lx_written_bytes
        ) // STICK_BYTES


def count_plan(plan: CorePlan) -> Counters:
    """The work of one execute of ``plan``, without memory interface, ring and executions."""
    traffic = operand_traffic(plan)
    points = prod(plan.op.extents.values())
    is_matmul = plan.spec.unit == "pt"
    return Counters(
        _sum(traffic, Component.HBM, False),
        _sum(traffic, Component.HBM, True),
        _sum(traffic, Component.LX, False),
        _sum(traffic, Component.LX, True),
        points if is_matmul else 0,
        0 if is_matmul else points,
    )


def operand_traffic(plan: CorePlan) -> tuple[OperandTraffic, ...]:
    """Bytes per operand, in the order of ``Operation.tensors``."""
    op = plan.op
    return tuple(
        OperandTraffic(
            access.tensor.name,
            access.tensor.component,
            access.tensor in op.outputs,
            sticks_per_core(op, access) * len(op.cores) * STICK_BYTES,
        )
        for access in plan.accesses
    )


def sticks_per_core(op: Operation, access: Access) -> int:
    """Sticks one core touches of an operand.

    For the value tensor of an indirect access: one per step of the dims it has and of those its
    index tensor has, since every index may lead to another stick.
    """
    if access.tensor.indirection is Indirection.VALUE:
        return _indirect_sticks(op, access)
    held = [dim for dim in access.tensor.dims if access.tensor.holds(dim)]
    return prod(_steps(op, access, dim) for dim in held)


def _steps(op: Operation, access: Access, dim: str) -> int:
    """Sticks (along a stick dim) or elements of ``dim`` that one core visits."""
    window = window_of(op, access.tensor, dim)
    if window is not None:
        count = min(window_span(op, dim, window), access.stored[dim])
    else:
        count = per_core(op, dim)
    if op.name == RESTICKIFY:
        count = min(count, access.stored[dim])
    return -(-count // access.sticks.get(dim, 1))


def _indirect_sticks(op: Operation, access: Access) -> int:
    tensors = (access.tensor, *op.index_tensors)
    visited = [dim for dim in op.dims if any(tensor.holds(dim) for tensor in tensors)]
    per_lane = any(tensor.holds(access.stick_dim) for tensor in op.index_tensors)
    steps = [
        per_core(op, dim) if per_lane or dim != access.stick_dim else _steps(op, access, dim)
        for dim in visited
    ]
    return prod(steps)


def _sum(traffic: tuple[OperandTraffic, ...], component: Component, is_output: bool) -> int:
    chosen = (t for t in traffic if t.component is component and t.is_output is is_output)
    return sum(t.size_bytes for t in chosen)
