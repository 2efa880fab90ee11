"""Data of counting: the work of executes, and the terms of an operation in the cost models.

`Counters` add up; an `OperationCounts` is one operation of a kernel, all its runs in one launch.
:mod:`.execute` computes them from an executed launch; planners that compare tilings make their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from math import prod
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from spyre.hw.spec import STICK_BYTES
from spyre.records import PartlyCompared


class Counters(msgspec.Struct, frozen=True):
    """Work of one execute, or a sum of several.

    ``multiply_adds`` run on the pt array (matmul, convolution), ``element_operations`` on the
    sfp: one per point of the iteration space, whatever the operation. Byte counts are sums over
    cores. ``rdmem_bytes`` and ``wrmem_bytes`` cross the memory interface (aiu-smi's names): a stick
    that several cores read at once, or write the sum of, counts once. ``ring_bytes``
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
        return _COUNTS(self)

    @property
    def by_name(self) -> dict[str, int]:
        """All counts, and the sticks that follow from them."""
        return {
            **dict(zip(Counters.__struct_fields__, self.values, strict=True)),
            "sticks": self.sticks,
        }

    @property
    def memory_bytes(self) -> int:
        """Bytes over the memory interface, both directions."""
        return self.rdmem_bytes + self.wrmem_bytes

    @property
    def lx_bytes(self) -> int:
        """Bytes cores move to and from scratchpads."""
        return self.lx_read_bytes + self.lx_written_bytes

    @property
    def sticks(self) -> int:
        """Sticks cores move to and from HBM and LX."""
        return sum(self.values[:4]) // STICK_BYTES


ONE_EXECUTION = Counters(executions=1)
_COUNTS = attrgetter(*Counters.__struct_fields__)


class CostClass(StrEnum):
    """Which terms of the calibrated model an operation has."""

    POINTWISE = "pointwise"
    """Reads and writes in order: elementwise, copies, conversions, and operations without another
    class."""
    BROADCAST = "broadcast"
    """Elementwise, with an operand in HBM that lacks a dim of the result."""
    ROW_REDUCTION = "row reduction"
    """Reduces the stick dim: one value of a row is left."""
    COLUMN_REDUCTION = "column reduction"
    """Reduces other dims; the stick stays."""
    TRANSPOSE = "transpose"
    """Another dim becomes the stick dim (restickify)."""
    CONCATENATION = "concatenation"
    """A copy into a part of a larger tensor that is not one range of it."""
    COPY_OUT = "copy"
    """A copy from HBM to the host, as the DMA engine makes it."""
    MEMSET = "memset"
    """Device memory is set to one value."""
    MATMUL = "matmul"
    """Runs on the pt array, with :attr:`OperationCounts.product`."""


class ProductShape(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a matrix product ``[batch, m, k] x [batch, k, n]``: elements, and cores per dim.

    ``shared``: the second operand has no batch dim, so batch and rows are one dim to the array.
    ``in_hbm``, ``interleaved``: of both operands and the result; in an interleaved tensor the
    sticks of all batches alternate, so that a core which has one batch moves single sticks.
    """

    m: int
    k: int
    n: int
    batch: int = 1
    m_cores: int = 1
    n_cores: int = 1
    k_cores: int = 1
    batch_cores: int = 1
    shared: bool = False
    in_hbm: tuple[bool, ...] = (True, True, True)
    interleaved: tuple[bool, ...] = (False, False, False)


class OperationCounts(PartlyCompared, frozen=True, kw_only=True):
    """One operation of a kernel, all its runs of one launch together.

    ``counters``: its work; a run is one of their executions, one per trip of the loops around it.
    The models take bytes over the memory interface, not the bytes that cores move to and from HBM.
    ``hbm_reread_bytes``: bytes read from HBM that an earlier run has already read.
    ``transcendental``: an element operation is a function like exp.

    ``largest_share``: part of the work of the busiest core, 0 for an even division among
    ``cores``. ``mac_format``: the format of a product's operands.

    ``rows``: steps outside of the stick dim of one run, all cores together; ``columns``:
    elements of the stick dim of one run, divided among ``column_cores``. ``scalar_operand``: an
    operand is one number for all elements. ``reads``, ``writes``: bytes over the memory interface
    of its operands and results in HBM, in their order, by first address.
    """

    uncompared = frozenset({"reads", "writes"})

    name: str
    cost_class: CostClass
    cores: int
    counters: Counters = ONE_EXECUTION
    hbm_reread_bytes: int = 0
    transcendental: bool = False
    largest_share: float = 0.0
    mac_format: str = "SEN169_FP16"
    rows: int = 0
    columns: int = 0
    column_cores: int = 1
    scalar_operand: bool = False
    product: ProductShape | None = None
    reads: Mapping[int, int] = msgspec.field(default_factory=dict)
    writes: Mapping[int, int] = msgspec.field(default_factory=dict)

    @property
    def runs(self) -> int:
        """Executions of the operation."""
        return self.counters.executions

    @property
    def hbm_bytes(self) -> int:
        """Bytes over the memory interface, both directions."""
        return self.counters.memory_bytes

    @property
    def lx_bytes(self) -> int:
        """Bytes to and from scratchpads, all cores."""
        return self.counters.lx_bytes

    @property
    def through_lx(self) -> bool:
        """True if an operand or the result is in LX."""
        return self.lx_bytes > 0

    @property
    def busiest(self) -> float:
        """Part of the work that the busiest core has."""
        return self.largest_share or 1.0 / self.cores

    @property
    def core_rows(self) -> float:
        """Rows of one run that one core has: the height of its row tile."""
        return self.rows * self.column_cores / self.cores


Dim = TypeVar("Dim")


def product_dims(
    dims: Sequence[Dim], first: Collection[Dim], second: Collection[Dim], result: Collection[Dim]
) -> dict[str, list[Dim]]:
    """``dims`` of a product by role (m, n, k, batch), from the dims of its operands and its result.

    Rows (m) are dims of the first operand and the result, columns (n) of the second and the result,
    batches of all three; dims that the result lacks are reduced (k).
    """
    by_kind: dict[str, list[Dim]] = {"m": [], "n": [], "k": [], "batch": []}
    for dim in dims:
        if dim not in result:
            by_kind["k"].append(dim)
        elif dim not in second:
            by_kind["m"].append(dim)
        else:
            by_kind["batch" if dim in first else "n"].append(dim)
    return by_kind


def product_shape(
    dims: Mapping[str, Sequence[Dim]], extents: Mapping[Dim, int], cores: Mapping[Dim, int]
) -> ProductShape:
    """The shape of a product. ``dims``: of :func:`product_dims`; ``extents``: elements of each,
    ``cores``: among how many it is divided, where it is.
    """
    size: dict[str, Any] = {
        kind: prod(extents[d] for d in members) for kind, members in dims.items()
    }
    for kind, members in dims.items():
        size[f"{kind}_cores"] = prod(cores.get(dim, 1) for dim in members)
    return ProductShape(**size)


def is_broadcast(operand: Collection[Dim], result: Collection[Dim]) -> bool:
    """True if an operand lacks some dims of the result, but not all. Dims of 1 are left out."""
    shared = sum(dim in operand for dim in result)
    return 0 < shared < len(result)
