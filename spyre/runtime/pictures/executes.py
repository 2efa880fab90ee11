"""Pictures of executes: the work slices of the cores, the tiles of the loops, and the graph of
writers and readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.dtypes import STICK_BYTES
from spyre.hw.access import core_boxes, is_indirect
from spyre.hw.spec import CORES
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Operation
from spyre.runtime.drawing import (
    COLOURS,
    INNER,
    Block,
    Markup,
    Picture,
    inside,
    label,
    legend_block,
    picture,
    rectangle,
    shown_indices,
    tag,
    text_block,
)
from spyre.runtime.tracing import MemoryWalk, TiledExecutes, WalkedMemory
from spyre.runtime.units import format_bytes

_SHOWN_TILES = 8
_MEMORY_ROWS = 8
_MEMORY_COLUMNS = 360
MAX_STICKS = 1 << 20
"""Operands of more sticks are described but not drawn."""


def _execute_title(group: TiledExecutes) -> str:
    """Return the execute numbers and the operation of a group."""
    first, last = group.first.number, group.members[-1].number
    numbers = f"{first}" if first == last else f"{first} to {last}"
    return f"execute {numbers}: {group.op.name}"


def _file_name(kind: str, group: TiledExecutes) -> str:
    return f"{kind}-{group.first.number}-{group.op.name}"


# --- cores ------------------------------------------------------------------------------------


def cores_picture(group: TiledExecutes) -> Picture:
    """Draw the part of the iteration space that each core computes, and the memory it accesses."""
    op = group.op
    extents = ", ".join(f"{dim} {op.extents[dim]:,}" for dim in op.dims)
    blocks = [
        text_block(f"{len(op.cores)} of {CORES} cores share the iterations {extents}."),
        *_slices_blocks(op),
        text_block("The cores of the card:", "faint"),
        _card(op),
        *(block for walk in group.walks for block in _core_memory(group, walk)),
        *_scratchpad_blocks(op),
    ]
    title = f"Cores of {_execute_title(group)}"
    return picture(_file_name("cores", group), title, blocks)


def _slices_blocks(op: Operation) -> list[Block]:
    """Draw the two dims with the most slices; cores in one cell differ in slices of other dims."""
    split = sorted((d for d in op.dims if op.slices.get(d, 1) > 1), key=lambda d: -op.slices[d])
    if not split:
        return [text_block("No dim is divided: every core that takes part does all of it.")]
    down, across = split[0], split[1] if len(split) > 1 else None
    cells: dict[tuple[int, int], list[int]] = {}
    for core, slices in zip(op.cores, op.core_slices, strict=True):
        cell = slices.get(down, 0), slices.get(across, 0) if across else 0
        cells.setdefault(cell, []).append(core)
    others = [d for d in op.dims if d not in (down, across) and op.extents[d] > 1]
    whole = f", each with all of {', '.join(others)}" if others and len(split) <= 2 else ""
    more = f"; {', '.join(split[2:])} too, so cells hold several cores" if len(split) > 2 else ""
    text = f"{' and '.join(d for d in (down, across) if d)} divided among cores{whole}{more}:"
    return [text_block(text, "faint"), _plane(op, down, across, cells)]


def _plane(
    op: Operation, down: str, across: str | None, cells: dict[tuple[int, int], list[int]]
) -> Block:
    left, height = 96.0, 19.0
    top = 16.0 if across else 0.0
    columns = op.slices[across] if across else 1
    width = (INNER - left) / columns
    pieces = []
    for x in shown_indices(columns, 4) if across else []:
        if across and x is not None:
            text = _range_text(op, across, x)
            pieces.append(label(text, left + (x + 0.5) * width, 11.0, max(width, 60.0),
                                "faint middle"))  # fmt: skip
    for y in range(op.slices[down]):
        line = top + y * height
        name = _range_text(op, down, y)
        pieces.append(label(name, left - 6.0, line + 13.5, left, "faint end"))
        for x in range(columns):
            held = cells.get((y, x), [])
            style = f"own colour-{held[0] % COLOURS}" if held else "idle"
            text = ", ".join(map(str, held))
            edge = left + x * width
            title = f"core {text}" if held else "no core"
            pieces.append(rectangle(edge + 1, line + 1, width - 2, height - 2, style, title))
            shown = f"core {text}" if width > 60.0 and held else text
            pieces.append(label(shown, edge + width / 2, line + 13.5, width, "middle"))
    return Block(top + op.slices[down] * height, inside(pieces))


def _range_text(op: Operation, dim: str, slice_: int) -> str:
    each = op.core_extent(dim)
    first = slice_ * each
    last = min(first + each, op.extents[dim]) - 1
    return f"{dim} {first}–{last}" if last > first else f"{dim} {first}"


def _card(op: Operation) -> Block:
    """Draw all cores of the card; those that take part are coloured."""
    width, height, pieces = INNER / 8, 20.0, []
    for core in range(CORES):
        x, y = core % 8 * width, core // 8 * height
        works = core in op.cores
        style = f"own colour-{core % COLOURS}" if works else "idle"
        pieces.append(rectangle(x + 1, y + 1, width - 2, height - 2, style))
        text = "middle" if works else "middle faint"
        pieces.append(label(str(core), x + width / 2, y + 14.0, width, text))
    return Block(CORES / 8 * height, inside(pieces))


def _core_memory(group: TiledExecutes, walk: MemoryWalk) -> Iterator[Block]:
    """Draw the memory of an operand; each stick has the colour of the core that accesses it."""
    touched = _accessed_sticks(group.op, walk, range(1))
    head = _memory_head(walk, f"{walk.memory.name} in HBM")
    if touched is None:
        yield _not_drawn(head)
        return
    parts = touched[0]
    shared = _is_shared(parts)
    each = format_bytes(len(parts[0]) * STICK_BYTES) if parts else "-"
    how = f"all cores read the same {each}" if shared else f"{each} a core"
    yield text_block(f"{head}: {how}{', in the first tile' if group.nest else ''}.")
    yield _owned_memory(walk.memory, group.op.cores, parts, shared)


def _memory_head(walk: MemoryWalk, place: str) -> str:
    verb = "written to" if walk.is_output else "read from"
    return f"{walk.tensor.name}, {verb} {place} ({format_bytes(walk.memory.size_bytes)})"


def _not_drawn(head: str) -> Block:
    return text_block(f"{head}: not drawn, it has too many sticks or an index tensor.")


def _is_shared(parts: Sequence[Int64Array]) -> bool:
    """Return whether several owners access the same sticks."""
    return len(parts) > 1 and all(np.array_equal(parts[0], each) for each in parts[1:])


def _owned_memory(
    memory: WalkedMemory, owners: Sequence[int], parts: Sequence[Int64Array], shared: bool
) -> Block:
    """Draw the sticks of each owner in its colour, those that all share in one."""
    colours = [7 if shared else owner % COLOURS for owner in owners]
    return memory_block(_memory_rows(memory), [*zip(colours, parts, strict=True)], STICK_BYTES)


def _scratchpad_blocks(op: Operation) -> Iterator[Block]:
    """Describe the operands in LX, the scratchpad of each core."""
    for tensor in op.tensors:
        if tensor.component is not Component.LX:
            continue
        box = core_boxes(op, tensor)[0]
        size = "-" if box is None else format_bytes(box.sticks * STICK_BYTES)
        verb = "written to" if tensor in op.outputs else "read from"
        yield text_block(f"{tensor.name}, {verb} LX: {size} at {tensor.starts[0]:#x} of every "
                         "core's scratchpad.")  # fmt: skip


def _accessed_sticks(
    op: Operation, walk: MemoryWalk, executions: Sequence[int]
) -> list[list[Int64Array]] | None:
    """Return the sticks that each core accesses in each of ``executions``.

    They are byte offsets in the memory. None for operands that are addressed by an index tensor,
    or are too large to draw.
    """
    boxes = core_boxes(op, walk.tensor)
    sticks = sum(0 if box is None else box.sticks for box in boxes) * len(executions)
    if is_indirect(walk.tensor) or sticks > MAX_STICKS or not walk.memory.size_bytes:
        return None
    nothing = np.empty(0, np.int64)
    return [
        [
            nothing if box is None else start - start % STICK_BYTES + box.walk.offsets()
            for box, start in zip(boxes, walk.offsets[row], strict=True)
        ]
        for row in executions
    ]


# --- memory -----------------------------------------------------------------------------------

MemoryRow = tuple[str, int, int]
"""Name, first byte and size in bytes of a part of a memory."""


def _memory_rows(memory: WalkedMemory) -> list[MemoryRow]:
    """Return one row per step of the outermost dim of the layout, at most `_MEMORY_ROWS`."""
    outer = memory.dims[0] if len(memory.dims) > 1 else None
    if outer is None:
        return [("byte 0", 0, memory.size_bytes)]
    each = outer.pitches[0]
    shown = shown_indices(outer.extent, _MEMORY_ROWS)
    return [(f"byte {part * each:,}", part * each, each) for part in shown if part is not None]


def memory_block(
    rows: Sequence[MemoryRow], owners: Sequence[tuple[int, Int64Array]], stick_bytes: int
) -> Block:
    """Draw memory from left to right, one line per row.

    ``owners``: (colour, byte addresses of sticks); a later owner is drawn over an earlier one.
    """
    left, height, pieces = 96.0, 13.0, []
    width = INNER - left
    for number, (name, first, size_bytes) in enumerate(rows):
        y = number * (height + 2.0)
        pieces.append(label(name, 0.0, y + 10.0, left - 4.0, "faint"))
        pieces.append(rectangle(left, y, width, height, "box"))
        colours = _column_colours(first, size_bytes, owners, stick_bytes)
        for begin, end, colour in _runs(colours):
            x, right = (left + width * edge / len(colours) for edge in (begin, end))
            pieces.append(rectangle(x, y, right - x, height, f"run colour-{colour}"))
    return Block(len(rows) * (height + 2.0), inside(pieces))


def _column_colours(
    first: int, size_bytes: int, owners: Sequence[tuple[int, Int64Array]], stick_bytes: int
) -> npt.NDArray[np.int8]:
    """Return the colour of each column of pixels, -1 where there is no owner."""
    count = max(min(_MEMORY_COLUMNS, size_bytes // stick_bytes), 1)
    colours = np.full(count, -1, np.int8)
    for colour, addresses in owners:
        in_row = addresses[(addresses >= first) & (addresses < first + size_bytes)]
        colours[(in_row - first) * count // size_bytes] = colour
    return colours


def _runs(colours: npt.NDArray[np.int8]) -> Iterable[tuple[int, int, int]]:
    """Yield (begin, end, colour) of neighbouring columns of one colour."""
    edges = np.flatnonzero(np.diff(colours)) + 1
    begins = np.concatenate([[0], edges])
    ends = np.append(edges, len(colours))
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        if colours[begin] >= 0:
            yield begin, end, int(colours[begin])


# --- tiles ------------------------------------------------------------------------------------


def tiles_picture(group: TiledExecutes) -> Picture:
    """Draw the loops around an operation, and the memory of each tile in its tensors."""
    executions = len(group.walks[0].offsets) if group.walks else 1
    shown = list(range(min(executions, _SHOWN_TILES)))
    loops = " × ".join(map(str, group.nest)) or str(executions)
    rest = "" if executions == len(shown) else f", the first {len(shown)} drawn"
    blocks = [
        text_block(f"Loops of {loops} trips: {executions:,} tiles{rest}."),
        _nest_block(group),
        legend_block([(f"colour-{tile}", f"tile {tile}") for tile in shown]),
        *(block for walk in group.walks for block in _tile_memory(group, walk, shown)),
        *_scratchpad_blocks(group.op),
    ]
    return picture(_file_name("tiles", group), f"Tiles of {_execute_title(group)}", blocks)


def _nest_block(group: TiledExecutes) -> Block:
    """Draw the loops as nested boxes with the operation innermost."""
    lines = [f"for {n} trips" for n in group.nest]
    height = 22.0 * (len(lines) + 1) + 4.0 * len(lines)
    pieces = []
    for depth, text in enumerate(lines):
        x, y = 8.0 * depth, 22.0 * depth
        box_height = height - y - 4.0 * depth
        pieces.append(rectangle(x, y, INNER - 2 * x, box_height, "box"))
        moves = [(walk.memory.name, group.steps(walk)[depth]) for walk in group.walks]
        steps = "; ".join(
            f"{name} {'irregular' if n is None else f'{n:+,} bytes' if n else 'stays'}"
            for name, n in moves
        )
        pieces.append(label(f"{text}: {steps}", x + 8.0, y + 15.0, INNER - 2 * x - 16.0))
    x, y = 8.0 * len(lines), 22.0 * len(lines)
    pieces.append(rectangle(x, y, INNER - 2 * x, 20.0, "own colour-0"))
    text = f"{group.op.name} on {len(group.op.cores)} cores"
    pieces.append(label(text, x + 8.0, y + 14.0, INNER - 2 * x - 16.0))
    return Block(height, inside(pieces))


def _tile_memory(group: TiledExecutes, walk: MemoryWalk, shown: Sequence[int]) -> Iterator[Block]:
    touched, head = _accessed_sticks(group.op, walk, shown), _memory_head(walk, walk.memory.name)
    if touched is None:
        yield _not_drawn(head)
        return
    tiles = [np.unique(np.concatenate(cores)) for cores in touched]
    shared, each = _is_shared(tiles), format_bytes(len(tiles[0]) * STICK_BYTES)
    yield text_block(
        f"{head}: {f'every tile takes the same {each}' if shared else f'{each} a tile'}"
    )
    yield _owned_memory(walk.memory, shown, tiles, shared)


# --- the graph --------------------------------------------------------------------------------

MAX_NODES = 40


class _Operand(msgspec.Struct, frozen=True, eq=False):
    """An operand of a group: its ``memory`` (LX or an HBM region's id) and byte range in it."""

    is_output: bool
    memory: object
    low: int
    high: int
    text: str

    def overlaps(self, other: _Operand) -> bool:
        """Return whether both access some common bytes."""
        return self.memory == other.memory and self.low < other.high and other.low < self.high


def _operands(group: TiledExecutes) -> Iterator[_Operand]:
    op = group.op
    walks = {walk.operand: walk for walk in group.walks}
    for number, tensor in enumerate(op.tensors):
        boxes = [box for box in core_boxes(op, tensor) if box is not None]
        is_output = tensor in op.outputs
        if tensor.component is Component.LX:
            size = max((box.end_bytes for box in boxes), default=0)
            low = tensor.starts[0]
            text = f"LX {low:#x}, {format_bytes(size)} a core"
            yield _Operand(is_output, Component.LX, low, low + size, text)
        elif number in walks:
            memory, offsets = walks[number].memory, walks[number].offsets
            size = max((box.end_bytes for box in boxes), default=memory.size_bytes)
            low, high = int(offsets.min()), int(offsets.max()) + size
            if is_indirect(tensor):
                low, high = 0, max(memory.size_bytes, 1)
            yield _Operand(is_output, id(memory), low, high, f"{memory.name} in HBM")


_Edge = tuple[float, float, str]
"""Rows of the writing and the reading operand, in units from the top, and the CSS class."""


def graph_picture(groups: Sequence[TiledExecutes]) -> Picture:
    """Draw the executes in program order, with lines from each writer to its readers."""
    shown = groups[:MAX_NODES]
    edges: list[_Edge] = []
    written: list[tuple[_Operand, int, float]] = []
    pieces, left, y = [], 60.0, 0.0
    for group in shown:
        operands = list(_operands(group))
        height = 22.0 + 15.0 * len(operands) + 4.0
        pieces.append(rectangle(left, y, INNER - left, height, "box"))
        pieces.append(_node_head(group, left, y))
        rows = [(each, y + 22.0 + 15.0 * k + 7.0) for k, each in enumerate(operands)]
        for operand, row in rows:
            # The last operand before this one that wrote some of the bytes it reads.
            writers = (each for each in reversed(written) if each[0].overlaps(operand))
            source = None if operand.is_output else next(writers, None)
            origin = "" if source is None else f" from execute {source[1]}"
            verb = "writes" if operand.is_output else "reads"
            text = f"{verb} {operand.text}{origin}"
            pieces.append(label(text, left + 8.0, row + 4.0, INNER - left - 16.0))
            if source is not None:
                colour = 2 if operand.memory is Component.LX else 0
                edges.append((source[2], row, f"edge colour-{colour}"))
        written += [(o, group.first.number, row) for o, row in rows if o.is_output]
        y += height + 8.0
    drawn = [*_drawn_edges(edges, left), *pieces]
    blocks = [
        text_block("Lines lead from the execute that writes memory to one that reads it: blue "
                   "through HBM, green through the cores' scratchpads (LX)."),
        Block(y, inside(drawn)),
    ]  # fmt: skip
    if len(groups) > len(shown):
        blocks.append(text_block(f"{len(groups) - len(shown)} later executes are left out."))
    return picture("executes", "Executes and the data between them", blocks)


def _node_head(group: TiledExecutes, left: float, y: float) -> Markup:
    runs = sum(len(member.loops) for member in group.members)
    times = f", {runs:,} times" if runs > 1 else ""
    text = f"{_execute_title(group)}{times}, {len(group.op.cores)} cores"
    return label(text, left + 8.0, y + 15.0, INNER - left - 16.0)


def _drawn_edges(edges: Sequence[_Edge], right: float) -> Iterator[Markup]:
    """Draw every line in a lane that no other line uses over the same rows."""
    lanes: list[float] = []
    for begin, end, style in sorted(edges, key=lambda each: each[:2]):
        free = next((k for k, last in enumerate(lanes) if last < begin), len(lanes))
        lanes[free:] = [end, *lanes[free + 1 :]]
        x = max(right - 12.0 - 7.0 * free, 3.0)
        yield tag("path", d=f"M{right:g} {begin:g}H{x:g}V{end:g}H{right - 5:g}", class_=style)
        yield tag("path", d=f"M{right - 6:g} {end - 3:g}l6 3l-6 3", class_=style)
