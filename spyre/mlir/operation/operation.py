"""The meaning of one SDSC, normalised: the hand-over from JSON to the planner in ``spyre/hw``.

An :class:`Operation` has dims, tensors, cores and constants with every irregularity of the file
(strings for numbers, scale order against layout order, shared start addresses) resolved. Rules:
SDSC reference §2-8 (sdsc.md).

`footprint` follows the address rule of §5.2: extents count elements, pitches and spans bytes. The
checker, ``explain`` and the builder read it. `with_sizes` binds symbolic dims to the sizes of a
launch (§11): memory stays laid out for the largest size, only the trip count changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES
from spyre.errors import JsonLocation, LaunchError
from spyre.records import PartlyCompared
from spyre.rules import Fault

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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


class Window(msgspec.Struct, frozen=True):
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


class SymbolicDim(msgspec.Struct, frozen=True):
    """A dim whose extent is known at launch (SDSC reference §11); memory is laid out for the
    largest.

    ``symbol``: the negative id under which the bundle passes the size S, 0 < S <= ``maximum``, a
    multiple of ``granularity`` (elements). ``tag``: the frontend's name of the symbol.
    """

    symbol: int
    maximum: int
    granularity: int = 1
    tag: str = ""


class Tensor(msgspec.Struct, frozen=True, dict=True):
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
    gap_elements: Mapping[str, int] = msgspec.field(default_factory=dict)
    device_dim_sizes: Mapping[str, int] = msgspec.field(default_factory=dict)
    max_dim_sizes: Mapping[str, int] = msgspec.field(default_factory=dict)
    indirection: Indirection = Indirection.NONE
    related_tensor: int | None = None
    per_core_in_hbm: bool = False
    json_path: str = "$"
    padding: Mapping[str, Padding] = msgspec.field(default_factory=dict)
    own_slices: Mapping[str, int] = msgspec.field(default_factory=dict)
    own_core_slices: tuple[Mapping[str, int], ...] = ()
    first_pitch_bytes: int = STICK_BYTES
    pitches: Mapping[str, int] = msgspec.field(default_factory=dict)

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
        """Bytes of a stick, or of an element of a tensor that is accessed by elements."""
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


class Operation(PartlyCompared, frozen=True, dict=True):
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

    uncompared = frozenset({"origin"})

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
    masks: Mapping[str, tuple[tuple[int, int], ...]] = msgspec.field(default_factory=dict)
    constants: Mapping[str, int] = msgspec.field(default_factory=dict)
    constant_formats: Mapping[str, str] = msgspec.field(default_factory=dict)
    data_format: str = "SEN169_FP16"
    unit: str = "sfp"
    windows: Mapping[str, Window] = msgspec.field(default_factory=dict)
    symbolic_dims: Mapping[str, SymbolicDim] = msgspec.field(default_factory=dict)
    last_extents: Mapping[str, int] = msgspec.field(default_factory=dict)
    index_steps: tuple[tuple[int, int], ...] = ()
    origin: Origin = Origin()

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """All operands: inputs, index tensors, outputs."""
        return (*self.inputs, *self.index_tensors, *self.outputs)

    @property
    def reduced_dims(self) -> tuple[str, ...]:
        """Dims that an input varies along, and no output."""
        read = (dim for dim in self.dims if any(t.holds(dim) for t in self.inputs))
        return tuple(dim for dim in read if not any(t.holds(dim) for t in self.outputs))

    def with_tensors(self, change: Callable[[Tensor], Tensor], **others: Any) -> Operation:
        """This operation with all operands changed; ``others``: further fields."""
        return replace(
            self,
            inputs=tuple(map(change, self.inputs)),
            index_tensors=tuple(map(change, self.index_tensors)),
            outputs=tuple(map(change, self.outputs)),
            **others,
        )

    @cached_property
    def footprints(self) -> dict[int, tuple[Tensor, Footprint]]:
        """Results of `footprint` by tensor index; a tensor of that index may be another."""
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
        """The window over ``tensor`` along ``dim``, of the first input only (operations §7)."""
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


# --- memory of operands --------------------------------------------------------------------------

RESTICKIFY = "ReStickifyOpHBM"

STORED_PADDING = (Padding.STORED_ZEROS, Padding.FULL_SPAN, Padding.FULL_SPAN_UNNEEDED)
"""Kinds of padding that stand in memory; with any other the padding is implied (our reading)."""


class Footprint(msgspec.Struct, frozen=True):
    """``stored`` elements per dim, ``pitch_bytes`` per dim (between sticks for a stick dim, between
    elements otherwise), ``allocation_bytes`` of the whole (HBM) or one core's (LX) tensor, and
    ``span_bytes`` from a core's start to the end of the last stick it touches.
    """

    stored: Mapping[str, int]
    pitch_bytes: Mapping[str, int]
    allocation_bytes: int
    span_bytes: int


def footprint(op: Operation, tensor: Tensor) -> Footprint:
    """Footprint of ``tensor``; its dims must be dims of ``op`` with slices that divide them."""
    known = op.footprints.get(tensor.index)
    if known is not None and known[0] is tensor:
        return known[1]
    stored: dict[str, int] = {}
    pitches: dict[str, int] = {}
    pitch, span = tensor.first_pitch_bytes, STICK_BYTES
    if tensor.pitches:
        span = tensor.unit_bytes
    for dim in tensor.dims:
        size = tensor.sticks.get(dim, 1)
        extent = stored[dim] = _stored_extent(op, tensor, dim)
        pitch = tensor.pitches.get(dim, pitch)
        pitches[dim] = pitch
        span += pitch * (_steps(op, tensor, dim, extent, size) - 1)
        pitch *= -(-extent // size)
    area = Footprint(stored, pitches, pitch, span)
    op.footprints[tensor.index] = tensor, area
    return area


def _stored_extent(op: Operation, tensor: Tensor, dim: str) -> int:
    """Elements that memory keeps along ``dim``."""
    scale = tensor.scale[dim]
    if scale != 1:
        return tensor.sticks.get(dim, 1) if scale == -2 else 1
    if dim in tensor.device_dim_sizes:
        return tensor.device_dim_sizes[dim]
    if tensor.indirection is Indirection.VALUE and tensor.max_dim_sizes.get(dim, -1) > 0:
        return tensor.max_dim_sizes[dim]
    gap = tensor.gap_elements.get(dim, 0)
    if (window := op.window_of(tensor, dim)) is not None:
        divided = tensor.is_local and op.slices.get(dim, 1) > 1
        whole = unsplit_input_extent(tensor, dim, window)
        return (op.window_span(tensor, dim) if divided else whole) + gap
    extent = op.tensor_extent(tensor, dim) if tensor.is_local else op.extents[dim]
    return extent - gap if gap and _gap_is_padding(op, tensor, dim, gap) else extent + gap


def implied_front(tensor: Tensor, dim: str, window: Window) -> int:
    """Elements of front padding along ``dim`` that memory does not hold."""
    return 0 if tensor.padding.get(dim) in STORED_PADDING else window.pad_front


def unsplit_input_extent(tensor: Tensor, dim: str, window: Window) -> int:
    """Input elements along a windowed ``dim`` that memory holds for all cores together."""
    if tensor.padding.get(dim) in STORED_PADDING:
        return window.total
    return window.total - window.pad_front - window.pad_back


def indexed_dims(op: Operation, tensor: Tensor) -> tuple[str, ...]:
    """Return the dims of a value tensor that its index tensor selects (§6.4), in tensor order.

    These are the shared dims with a bounded size or, if none is bounded, all shared dims.
    """
    if tensor.indirection is not Indirection.VALUE or op.index_steps:
        return ()
    shared = [d for d in tensor.dims if any(index.holds(d) for index in op.index_tensors)]
    bounded = [d for d in shared if tensor.max_dim_sizes.get(d, -1) > 0]
    return tuple(bounded or shared)


class IndexStep(msgspec.Struct, frozen=True):
    """The move of a value tensor by one step of an index: ``page`` elements of ``dim`` (§6.4).

    ``inside``: the iteration runs within the page along ``dim``; otherwise the index takes the
    place of the dim's coordinate.
    """

    dim: str
    page: int
    inside: bool


def index_step(op: Operation, tensor: Tensor) -> IndexStep | None:
    """Return the dim and step that an index into ``tensor`` counts; None if the file has neither.

    The dim is the first that the value tensor shares with its index tensor or, without shared
    dims, its only paged dim.
    """
    if indexed := indexed_dims(op, tensor):
        return IndexStep(indexed[0], max(tensor.max_dim_sizes.get(indexed[0], 1), 1), False)
    paged = [d for d in tensor.dims if tensor.holds(d) and tensor.max_dim_sizes.get(d, -1) > 0]
    if tensor.indirection is not Indirection.VALUE or len(paged) != 1:
        return None
    return IndexStep(paged[0], tensor.max_dim_sizes[paged[0]], True)


def index_step_fault(op: Operation, tensor: Tensor) -> str:
    """Return the reason why indexed addresses of ``tensor`` are undefined; "" if they are not."""
    step = index_step(op, tensor)
    if step is None:
        return f"no dim of {tensor.name} is indexed"
    own_dims = [dim for dim in tensor.dims if tensor.holds(dim)]
    if step.dim not in own_dims:
        return f"an index counts along {step.dim}, which {tensor.name} does not have"
    beyond = own_dims[own_dims.index(step.dim) + 1 :]
    moving = [dim for dim in beyond if op.extents[dim] > tensor.sticks.get(dim, 1)]
    outer = [dim for dim in moving if dim not in indexed_dims(op, tensor)]
    if outer and step.dim not in tensor.device_dim_sizes:
        return f"pitch of {outer[0]} of {tensor.name}: the extent of {step.dim} is not given"
    for dim, page in tensor.max_dim_sizes.items():
        if tensor.holds(dim) and dim not in indexed_dims(op, tensor) and 0 < page < op.extents[dim]:
            return f"{dim} runs beyond the pages of {page} of {tensor.name}"
    return ""


def _gap_is_padding(op: Operation, tensor: Tensor, dim: str, gap: int) -> bool:
    """§7: a padded restickify rounds N up to the other tensor's stick, the excess is the gap."""
    if op.name != RESTICKIFY or dim in tensor.stick_dims:
        return False
    sticks = [
        size
        for other in (*op.inputs, *op.outputs)
        for stick_dim, size in zip(other.stick_dims, other.stick_sizes, strict=True)
        if stick_dim == dim
    ]
    return any(0 < gap < size and op.extents[dim] % size == 0 for size in sticks)


def _steps(op: Operation, tensor: Tensor, dim: str, stored: int, stick: int) -> int:
    """Sticks (of a stick dim) or elements that one core visits along ``dim``."""
    if tensor.scale[dim] != 1 or dim in indexed_dims(op, tensor):
        return 1
    window = op.window_of(tensor, dim)
    if window is None:
        extent = min(op.tensor_extent(tensor, dim), stored)
    else:
        extent = _visited(op, tensor, dim, window, stored)
    return max(1, -(-extent // stick))


def _visited(op: Operation, tensor: Tensor, dim: str, window: Window, stored: int) -> int:
    """Input elements of a windowed ``dim`` from the last core's start to the last it reads."""
    reach = op.window_span(tensor, dim) - implied_front(tensor, dim, window)
    slices = 1 if tensor.is_local else op.slices.get(dim, 1)
    origin = (slices - 1) * (op.extents[dim] // slices) * window.stride
    room = min(stored, unsplit_input_extent(tensor, dim, window)) - origin
    return min(reach, room)


Sizes = Mapping[str, int]
"""Extent in elements per symbolic dim."""


def with_sizes(op: Operation, sizes: Sizes) -> Operation:
    """``op`` over ``sizes``, its tensors still stored as for the maxima. LaunchError SPY372."""
    if not op.symbolic_dims:
        return op
    for dim, size in op.symbolic_dims.items():
        _check_size(op, dim, size, sizes[dim])
    return op.with_tensors(
        lambda tensor: pinned(op, tensor, op.symbolic_dims),
        extents={**op.extents, **{dim: sizes[dim] for dim in op.symbolic_dims}},
        symbolic_dims={},
    )


def pinned(op: Operation, tensor: Tensor, dims: Mapping[str, object]) -> Tensor:
    """``tensor`` whose stored extents along ``dims`` no longer follow from those of ``op``."""
    stored = {
        dim: _stored_extent(op, tensor, dim)
        for dim in tensor.dims
        if dim in dims and tensor.holds(dim)
    }
    return replace(tensor, device_dim_sizes={**tensor.device_dim_sizes, **stored})


def group_by_sizes(
    op: Operation, symbol_ids: tuple[int, ...], symbols: npt.NDArray[np.int64]
) -> Iterator[tuple[Sizes, npt.NDArray[np.int64]]]:
    """Sizes, and the instances (rows of ``symbols``, one column per id) that have them.

    The ids hold those of ``op``'s symbolic dims: see `unbound_symbols`.
    """
    import numpy as np  # not at the top: checking a bundle does without

    dims = op.symbolic_dims
    columns = [symbol_ids.index(size.symbol) for size in dims.values()]
    if not dims or not len(symbols):
        yield {}, np.arange(len(symbols))
        return
    values, which = np.unique(symbols[:, columns], axis=0, return_inverse=True)
    for k, row in enumerate(values):
        sizes = dict(zip(dims, (int(value) for value in row), strict=True))
        yield sizes, np.flatnonzero(which.reshape(-1) == k)


def _check_size(op: Operation, dim: str, size: SymbolicDim, value: int) -> None:
    if 0 < value <= size.maximum and value % max(size.granularity, 1) == 0:
        return
    name = f" {size.tag}" if size.tag else ""
    message = f"{op.name}: runtime size{name} of dim {dim} contradicts the SDSC"
    location = JsonLocation(op.file, "$.dscs_[0].N_.symbolicDimInfo_")
    expected = f"a positive multiple of {size.granularity} up to {size.maximum}"
    raise LaunchError("SPY372", message, location, expected=expected, found=str(value))


# --- work slices -----------------------------------------------------------------------------


def slice_offsets(op: Operation, tensor: Tensor) -> tuple[int, ...]:
    """Bytes from the tensor's start to every core's slice; 0 where each core has its own tensor.

    A table's indexed dims move no start (§6.4: it is shared); a share of less than a stick starts
    within the stick.
    """
    moving = [dim for dim in moving_dims(op, tensor) if dim not in op.symbolic_dims]
    if not moving:
        return (0,) * len(op.core_slices)
    pitches = footprint(op, tensor).pitch_bytes
    offsets = {dim: _slice_origins(op, tensor, dim, pitches[dim]) for dim in moving}
    return tuple(sum(offsets[dim][row[dim]] for dim in moving) for row in op.core_slices)


def moving_dims(op: Operation, tensor: Tensor) -> list[str]:
    """Dims along which the cores' starts differ."""
    if tensor.component is Component.LX or tensor.per_core_in_hbm:
        return []
    indexed = indexed_dims(op, tensor)
    return [d for d in tensor.dims if tensor.holds(d) and d in op.slices and d not in indexed]


def _slice_origins(op: Operation, tensor: Tensor, dim: str, pitch: int) -> dict[int, int]:
    """Bytes from the tensor's first element to the first one of a slice of ``dim``, by its index.

    Under a window, the element its first output position starts at, padding counted as stored.
    """
    window, stick = op.window_of(tensor, dim), tensor.sticks.get(dim, 1)
    step = op.core_extent(dim) * (window.stride if window else 1)
    inside = tensor.word_length_bytes if len(tensor.stick_dims) == 1 else 0
    return {
        index: index * step // stick * pitch + index * step % stick * inside
        for index in {row[dim] for row in op.core_slices}
    }
