"""The meaning of one SDSC, normalised: the hand-over from JSON to the planner in ``spyre/hw``.

An :class:`Operation` has dims, tensors, cores and constants with every irregularity of the file
(strings for numbers, scale order against layout order, shared start addresses) resolved. It is
pure description: no addresses are computed here. Rules: SDSC reference §2-8 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from spyre.dtypes import STICK_BYTES
from spyre.rules import Fault

if TYPE_CHECKING:
    from spyre.mlir.operation.footprint import Footprint

MASK_CONSTANT = "samv-maskvalue"
"""The constant that stands in for masked elements (SDSC reference §8)."""
INDEX_LIMIT_CONSTANT = "indexLimit"
"""Our own: the first index that a gather refuses; a card reads whatever lies there."""
OVERFLOW_CONSTANT = "refuseOverflow"
"""Our own: integer operations that have it and a result beyond int32 fault, where a card wraps. For
int64 tensors, which cards hold as int32.
"""


class Component(StrEnum):
    """Where a tensor lives."""

    HBM = "hbm"
    LX = "lx"


class Indirection(StrEnum):
    """Part a tensor plays in an indirect access."""

    NONE = "no_indirection"
    VALUE = "value_tensor"
    INDEX = "index_tensor"


class Padding(StrEnum):
    """Kinds of padding along a windowed dim in a tensor's memory (operations reference §7)."""

    NONE = "nopad"
    LOWERED = "lowered_padded"
    IMPLIED = "padded_nozeropad"
    STORED_ZEROS = "padded_wzeropad"
    FULL_SPAN = "padded_fullspan"
    FULL_SPAN_UNNEEDED = "padded_fullspan_wunneeded"


@dataclass(frozen=True, slots=True)
class Window:
    """A window that slides along a spatial dim: ``paddingSizes_`` of N_ (SDSC reference §3).

    The dim's extent counts output positions; input coordinate = position · ``stride`` + place in
    ``window_dim`` · ``dilation`` - ``pad_front``. ``total``: input extent with padding on both
    sides. ``unneeded``, ``unneeded_front``, ``unneeded_back``: padding that the file declares as
    read by no position. All in elements.
    """

    window_dim: str
    total: int
    stride: int = 1
    dilation: int = 1
    pad_front: int = 0
    pad_back: int = 0
    unneeded: int = 0
    unneeded_front: int = 0
    unneeded_back: int = 0

    def span(self, positions: int, window: int) -> int:
        """Input elements that ``positions`` outputs read through a window of ``window``."""
        return (positions - 1) * self.stride + self.dilation * (window - 1) + 1


@dataclass(frozen=True, slots=True)
class SymbolicDim:
    """A dim whose extent is known at launch (SDSC reference §11); memory is laid out for the
    largest.

    ``symbol``: the negative id under which the bundle passes the size S, 0 < S <= ``maximum``, a
    multiple of ``granularity`` (elements). ``tag``: the frontend's name of the symbol.
    """

    symbol: int
    maximum: int
    granularity: int = 1
    tag: str = ""


@dataclass(frozen=True)
class Tensor:
    """One operand.

    ``dims`` is the allocate node's layoutDimOrder_, innermost first, the stick dim standing where
    its stick-count axis is. ``scale`` per dim: 1 present, -1 absent (extent 1), -2 absent stick
    dim that keeps one stick. ``stick_dims``/``stick_sizes`` (elements) are innermost first.
    ``starts``: one entry per core of the operation (same order as ``Operation.cores``): byte
    addresses, or negative symbol ids when ``symbolic``. ``gap_elements`` per dim, as in the file.
    ``own_slices``/``own_core_slices``: the tensor's own work slices per dim (count) and per core
    (index), set only where the allocate node carries them (``shuffle``); else the operation's hold.
    ``padding``: per windowed dim, nothing where memory holds no padding. ``first_pitch_bytes``:
    distance of two steps of the innermost dim; more than a stick only where a larger tensor, of
    which this is a tile, has another dim inside of it. ``pitches``: bytes between neighbours
    (sticks of a stick dim) per dim, where they do not follow from stored extents: views. With
    sticks of one element, the tensor is accessed element by element.
    """

    index: int
    name: str
    role: str
    component: Component
    data_format: str
    word_length_bytes: int
    dims: tuple[str, ...]
    scale: Mapping[str, int]
    stick_dims: tuple[str, ...]
    stick_sizes: tuple[int, ...]
    starts: tuple[int, ...]
    symbolic: bool = False
    gap_elements: Mapping[str, int] = field(default_factory=dict)
    device_dim_sizes: Mapping[str, int] = field(default_factory=dict)
    max_dim_sizes: Mapping[str, int] = field(default_factory=dict)
    indirection: Indirection = Indirection.NONE
    related_tensor: int | None = None
    per_core_in_hbm: bool = False
    json_path: str = "$"
    padding: Mapping[str, Padding] = field(default_factory=dict)
    own_slices: Mapping[str, int] = field(default_factory=dict)
    own_core_slices: tuple[Mapping[str, int], ...] = ()
    first_pitch_bytes: int = STICK_BYTES
    pitches: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def sticks(self) -> Mapping[str, int]:
        """Elements of each stick dim in one stick; a dim may be listed twice (packed formats)."""
        elements: dict[str, int] = {}
        for dim, size in zip(self.stick_dims, self.stick_sizes, strict=True):
            elements[dim] = elements.get(dim, 1) * size
        return elements

    def holds(self, dim: str) -> bool:
        """True if the tensor really varies along ``dim`` (listed with scale 1)."""
        return self.scale.get(dim) == 1

    @property
    def by_elements(self) -> bool:
        """True if it is accessed element by element, at any distance."""
        return self.stick_sizes == (1,) and bool(self.pitches)

    @property
    def unit_bytes(self) -> int:
        """Bytes of what it is accessed by: a stick, or an element."""
        return self.word_length_bytes if self.by_elements else STICK_BYTES

    @property
    def is_local(self) -> bool:
        """True if every core holds a separate tensor instead of a slice of a shared one."""
        return self.component is Component.LX or self.per_core_in_hbm


class Origin(NamedTuple):
    """The graph node that an operation was made for, and the aten operation of that node; "" if
    the file names none (``debug_handle_``).
    """

    node: str = ""
    aten_op: str = ""


@dataclass(frozen=True)
class Operation:
    """One computeOp_ over all its cores.

    ``extents``: total iteration extent (elements) per dim in N_ order. ``slices``: work slices per
    dim. ``core_slices[i][dim]``: slice index of core ``cores[i]``. ``masks``: dim → ((start,
    count), …) in global coordinates. ``constants``: name → bit pattern in ``constant_formats``
    of that name; a list per core is not part of any known file and refused on reading.
    ``windows``: by spatial dim, of convolutions and pooling. ``symbolic_dims``: dims whose extent
    is a symbol; ``extents`` then holds the maximum. ``last_extents``: extent of the last work slice
    of a dim, where it is shorter than that of the others. ``index_steps``: of moves by elements,
    per index tensor the bytes that an index counts and the first index out of range. ``origin``:
    operations that differ in it only are equal and share plans.
    """

    name: str
    file: str
    sdsc_name: str
    dims: tuple[str, ...]
    extents: Mapping[str, int]
    cores: tuple[int, ...]
    slices: Mapping[str, int]
    core_slices: tuple[Mapping[str, int], ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    index_tensors: tuple[Tensor, ...] = ()
    masks: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)
    constant_formats: Mapping[str, str] = field(default_factory=dict)
    data_format: str = "SEN169_FP16"
    unit: str = "sfp"
    windows: Mapping[str, Window] = field(default_factory=dict)
    symbolic_dims: Mapping[str, SymbolicDim] = field(default_factory=dict)
    last_extents: Mapping[str, int] = field(default_factory=dict)
    index_steps: tuple[tuple[int, int], ...] = ()
    origin: Origin = field(default=Origin(), compare=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Return the fields only, so that plans on disk do not store cached properties."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """All operands: inputs, index tensors, outputs."""
        return (*self.inputs, *self.index_tensors, *self.outputs)

    @cached_property
    def footprints(self) -> dict[int, tuple[Tensor, Footprint]]:
        """What `footprint` has computed, by tensor index; a tensor of that index may be another."""
        return {}

    @cached_property
    def symbol_ids(self) -> tuple[int, ...]:
        """Distinct symbol ids in order of first appearance over tensors and cores, then sizes."""
        tensors = sorted(self.tensors, key=lambda t: t.index)
        starts = (s for t in tensors if t.symbolic for s in t.starts)
        sizes = (size.symbol for size in self.symbolic_dims.values())
        return tuple(dict.fromkeys((*starts, *sizes)))

    def core_extent(self, dim: str) -> int:
        """Elements of ``dim`` one core iterates, cores of a shorter last slice left out."""
        if dim in self.last_extents:
            return (self.extents[dim] - self.last_extents[dim]) // (self.slices[dim] - 1)
        return self.extents[dim] // self.slices.get(dim, 1)

    def tensor_extent(self, tensor: Tensor, dim: str) -> int:
        """Elements of ``dim`` one core has of ``tensor``: by the tensor's own slices if it has any,
        else those the core iterates.
        """
        if tensor.own_slices:
            return self.extents[dim] // tensor.own_slices.get(dim, 1)
        return self.core_extent(dim)

    def window_of(self, tensor: Tensor, dim: str) -> Window | None:
        """The window that slides over ``tensor`` along ``dim``: only over the first input
        (operations reference §7).
        """
        window = self.windows.get(dim)
        if window is None or not self.inputs or tensor.index != self.inputs[0].index:
            return None
        return window if tensor.holds(dim) else None

    def window_span(self, tensor: Tensor, dim: str) -> int:
        """Elements of ``dim`` one core's windows read of ``tensor``, padding included; where no
        window slides, the elements it iterates.
        """
        window = self.window_of(tensor, dim)
        if window is None:
            return self.core_extent(dim)
        return window.span(self.core_extent(dim), self.extents.get(window.window_dim, 1))


# --- symbols of an execute -----------------------------------------------------------------------


def unbound_symbols(
    op: Operation, filename: str, symbol_ids: Sequence[int]
) -> Iterator[Fault[None]]:
    """SPY275 for every symbol that an execute of ``filename`` with ``symbol_ids`` does not bind."""
    missing = set(op.symbol_ids).difference(symbol_ids)
    for symbol, user in _symbol_users(op) if missing else ():
        if symbol in missing:
            missing.remove(symbol)
            message = f"symbol {symbol} used by {filename} {user} is not bound"
            found = shortened(symbol_ids)
            yield Fault("SPY275", None, message, f"{symbol} in symbol_ids", found)


def _symbol_users(op: Operation) -> Iterator[tuple[int, str]]:
    """Yield the symbol id and a description of the user, for every use of a symbol."""
    for tensor in op.tensors:
        if tensor.symbolic:
            for core, symbol in zip(op.cores, tensor.starts, strict=True):
                yield symbol, f"tensor {tensor.name} core {core}"
    for dim, size in op.symbolic_dims.items():
        yield size.symbol, f"dim {dim}"


def shortened(ids: Sequence[int]) -> str:
    """Symbol ids for a message."""
    shown = ", ".join(map(str, ids[:6]))
    return f"[{shown}, … {len(ids)} in all]" if len(ids) > 6 else f"[{shown}]"


def literal_addresses(op: Operation, filename: str) -> Iterator[Fault[Tensor]]:
    """SPY298 for operands with literal addresses, where the arguments' addresses are parameters.

    A literal address means an argument by its segment, which only baked bundles have.
    """
    for tensor in op.tensors:
        if tensor.component is Component.HBM and not tensor.symbolic:
            yield Fault(
                "SPY298",
                tensor,
                f"{tensor.name} of {filename} has an address that belongs to no argument",
                "symbol ids: the arguments' addresses are parameters of the bundle",
                f"the literal address {tensor.starts[0]:#x}",
            )
