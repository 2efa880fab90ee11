"""What an execute does where: the work of its cores, the tiles of its loops, and who reads what
others have written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.hw.access import core_boxes, is_indirect
from spyre.hw.spec import CORES
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Operation, Tensor
from spyre.runtime.pictures.drawing import (
    COLOURS,
    INNER,
    MAX_STICKS,
    Block,
    MemoryRow,
    Picture,
    label,
    legend_block,
    memory_block,
    picked,
    picture,
    rectangle,
    text_block,
)
from spyre.runtime.profile.report import Markup, inside, tag
from spyre.runtime.tracing import MemoryWalk, TiledExecutes, WalkedMemory
from spyre.runtime.units import format_bytes

_SHOWN_TILES = 8
_MEMORY_ROWS = 8


def numbered(group: TiledExecutes) -> str:
    """The executes of a group, for people."""
    first, last = group.first.number, group.members[-1].number
    numbers = f"{first}" if first == last else f"{first} to {last}"
    return f"execute {numbers}: {group.op.name}"


def _file_name(kind: str, group: TiledExecutes) -> str:
    return f"{kind}-{group.first.number}-{group.op.name}"


# --- cores ------------------------------------------------------------------------------------


def cores_picture(group: TiledExecutes) -> Picture:
    """Which core does which part of the iteration space, and which memory it touches."""
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
    title = f"Cores of {numbered(group)}"
    return picture(_file_name("cores", group), title, blocks)


def _slices_blocks(op: Operation) -> list[Block]:
    """The two dims cut into most slices as a plane; cores that share a cell differ in others."""
    split = sorted((d for d in op.dims if op.slices.get(d, 1) > 1), key=lambda d: -op.slices[d])
    if not split:
        return [text_block("No dim is divided: every core that takes part does all of it.")]
    down, across = split[0], split[1] if len(split) > 1 else None
    cells: dict[tuple[int, int], list[int]] = {}
    for core, slices in zip(op.cores, op.core_slices, strict=True):
        place = slices.get(down, 0), slices.get(across, 0) if across else 0
        cells.setdefault(place, []).append(core)
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
    for x in picked(columns, 4) if across else []:
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
            place = left + x * width
            title = f"core {text}" if held else "no core"
            pieces.append(rectangle(place + 1, line + 1, width - 2, height - 2, style, title))
            shown = f"core {text}" if width > 60.0 and held else text
            pieces.append(label(shown, place + width / 2, line + 13.5, width, "middle"))
    return Block(top + op.slices[down] * height, inside(pieces))


def _range_text(op: Operation, dim: str, slice_: int) -> str:
    each = op.core_extent(dim)
    first = slice_ * each
    last = min(first + each, op.extents[dim]) - 1
    return f"{dim} {first}–{last}" if last > first else f"{dim} {first}"


def _card(op: Operation) -> Block:
    """All cores of the card, those that work in their colours."""
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
    """An operand's memory in the colours of the cores that touch it first."""
    verb = "written to" if walk.is_output else "read from"
    size = format_bytes(walk.memory.size_bytes)
    head = f"{walk.tensor.name}, {verb} {walk.memory.name} in HBM ({size})"
    touched = _touched(group.op, walk, range(1))
    if touched is None:
        yield text_block(f"{head}: which sticks, its index tensor or its size says.")
        return
    parts = touched[0]
    shared = len(parts) > 1 and all(np.array_equal(parts[0], each) for each in parts[1:])
    each = format_bytes(len(parts[0]) * STICK_BYTES) if parts else "-"
    how = f"all cores read the same {each}" if shared else f"{each} a core"
    yield text_block(f"{head}: {how}{', in the first tile' if group.nest else ''}.")
    cores = group.op.cores
    owners = [(7 if shared else c % COLOURS, a) for c, a in zip(cores, parts, strict=True)]
    yield memory_block(_rows(walk.memory), owners, STICK_BYTES)


def _scratchpad_blocks(op: Operation) -> Iterator[Block]:
    """Operands in LX, which every core has for itself."""
    for tensor in op.tensors:
        if tensor.component is not Component.LX:
            continue
        box = core_boxes(op, tensor)[0]
        size = "-" if box is None else format_bytes(box.sticks * STICK_BYTES)
        verb = "written to" if tensor in op.outputs else "read from"
        yield text_block(f"{tensor.name}, {verb} LX: {size} at {tensor.starts[0]:#x} of every "
                         "core's own scratchpad.")  # fmt: skip


def _touched(
    op: Operation, walk: MemoryWalk, executions: Sequence[int]
) -> list[list[Int64Array]] | None:
    """Sticks of each core in each of ``executions``, bytes from the start of the memory."""
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


def _rows(memory: WalkedMemory) -> list[MemoryRow]:
    """The memory in the parts that its layout's outermost dim has, those that there is room for."""
    outer = memory.dims[0] if len(memory.dims) > 1 else None
    if outer is None:
        return [MemoryRow("byte 0", 0, memory.size_bytes)]
    each = outer.pitches[0]
    shown = picked(outer.extent, _MEMORY_ROWS)
    parts = [part for part in shown if part is not None]
    return [MemoryRow(f"byte {part * each:,}", part * each, each) for part in parts]


# --- tiles ------------------------------------------------------------------------------------


def tiles_picture(group: TiledExecutes) -> Picture:
    """The loops around an operation, and where its tiles lie in the tensors."""
    executions = len(group.walks[0].offsets) if group.walks else 1
    shown = list(range(min(executions, _SHOWN_TILES)))
    loops = " × ".join(map(str, group.nest)) or str(executions)
    rest = "" if executions == len(shown) else f", the first {len(shown)} drawn"
    blocks = [
        text_block(f"Loops of {loops} trips: {executions:,} tiles{rest}."),
        _nest_block(group),
        legend_block([(tile, f"tile {tile}") for tile in shown]),
        *(block for walk in group.walks for block in _tile_memory(group, walk, shown)),
        *_scratchpad_blocks(group.op),
    ]
    return picture(_file_name("tiles", group), f"Tiles of {numbered(group)}", blocks)


def _nest_block(group: TiledExecutes) -> Block:
    """Loops as boxes, one inside the other, the operation innermost."""
    lines = [f"for {n} trips" for n in group.nest]
    height = 22.0 * (len(lines) + 1) + 4.0 * len(lines)
    pieces = []
    for depth, text in enumerate(lines):
        x, y = 8.0 * depth, 22.0 * depth
        box_height = height - y - 4.0 * depth
        pieces.append(rectangle(x, y, INNER - 2 * x, box_height, "box"))
        steps = "; ".join(_step_texts(group, depth))
        pieces.append(label(f"{text}: {steps}", x + 8.0, y + 15.0, INNER - 2 * x - 16.0))
    x, y = 8.0 * len(lines), 22.0 * len(lines)
    pieces.append(rectangle(x, y, INNER - 2 * x, 20.0, "own colour-0"))
    text = f"{group.op.name} on {len(group.op.cores)} cores"
    pieces.append(label(text, x + 8.0, y + 14.0, INNER - 2 * x - 16.0))
    return Block(height, inside(pieces))


def _step_texts(group: TiledExecutes, depth: int) -> Iterator[str]:
    """How far a loop moves each operand."""
    for walk in group.walks:
        step = group.steps(walk)[depth] if len(group.nest) else 0
        moved = "irregular" if step is None else f"{step:+,} bytes" if step else "stays"
        yield f"{walk.memory.name} {moved}"


def _tile_memory(group: TiledExecutes, walk: MemoryWalk, shown: Sequence[int]) -> Iterator[Block]:
    verb = "written to" if walk.is_output else "read from"
    size = format_bytes(walk.memory.size_bytes)
    head = f"{walk.tensor.name}, {verb} {walk.memory.name} ({size})"
    touched = _touched(group.op, walk, shown)
    if touched is None:
        yield text_block(f"{head}: which sticks, its index tensor or its size says.")
        return
    tiles = [np.unique(np.concatenate(cores)) for cores in touched]
    same = len(tiles) > 1 and all(np.array_equal(tiles[0], tile) for tile in tiles[1:])
    each = format_bytes(len(tiles[0]) * STICK_BYTES)
    yield text_block(f"{head}: {f'every tile takes the same {each}' if same else f'{each} a tile'}")
    owners = [(7 if same else tile % COLOURS, sticks) for tile, sticks in zip(shown, tiles,
              strict=True)]  # fmt: skip
    yield memory_block(_rows(walk.memory), owners, STICK_BYTES)


# --- the graph --------------------------------------------------------------------------------

MAX_NODES = 40


@dataclass(frozen=True, eq=False)
class _Operand:
    """What a group touches. ``place``: LX, or the id of a memory; bytes from its start."""

    tensor: Tensor
    is_output: bool
    place: object
    low: int
    high: int
    text: str

    def meets(self, other: _Operand) -> bool:
        """True if their ranges overlap."""
        return self.place == other.place and self.low < other.high and other.low < self.high


@dataclass(frozen=True, eq=False)
class _Node:
    group: TiledExecutes

    @cached_property
    def operands(self) -> tuple[_Operand, ...]:
        """In the order of the operation's tensors."""
        return tuple(_operands(self.group))


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
            yield _Operand(tensor, is_output, Component.LX, low, low + size, text)
        elif number in walks:
            memory, offsets = walks[number].memory, walks[number].offsets
            size = max((box.end_bytes for box in boxes), default=memory.size_bytes)
            low, high = int(offsets.min()), int(offsets.max()) + size
            if is_indirect(tensor):
                low, high = 0, max(memory.size_bytes, 1)
            yield _Operand(tensor, is_output, id(memory), low, high, f"{memory.name} in HBM")


@dataclass(frozen=True)
class _Edge:
    """From operand row to operand row, in units from the top."""

    begin: float
    end: float
    style: str


def graph_picture(groups: Sequence[TiledExecutes]) -> Picture:
    """Executes in the order they run; a line leads from who wrote an operand to who reads it."""
    nodes = [_Node(group) for group in groups[:MAX_NODES]]
    edges: list[_Edge] = []
    written: list[tuple[_Operand, int, float]] = []
    pieces, left, y = [], 60.0, 0.0
    for node in nodes:
        height = 22.0 + 15.0 * len(node.operands) + 4.0
        pieces.append(rectangle(left, y, INNER - left, height, "box"))
        pieces.append(_node_head(node.group, left, y))
        rows = [(each, y + 22.0 + 15.0 * k + 7.0) for k, each in enumerate(node.operands)]
        for operand, row in rows:
            source = _writer(written, operand) if not operand.is_output else None
            origin = "" if source is None else f" from execute {source[1]}"
            verb = "writes" if operand.is_output else "reads"
            text = f"{verb} {operand.text}{origin}"
            pieces.append(label(text, left + 8.0, row + 4.0, INNER - left - 16.0))
            if source is not None:
                style = "line lx" if operand.place is Component.LX else "line hbm"
                edges.append(_Edge(source[2], row, style))
        written += [(o, node.group.first.number, row) for o, row in rows if o.is_output]
        y += height + 8.0
    drawn = [*_drawn_edges(edges, left), *pieces]
    blocks = [
        text_block("Lines lead from the execute that writes memory to one that reads it: blue "
                   "through HBM, green through the cores' scratchpads (LX)."),
        Block(y, inside(drawn)),
    ]  # fmt: skip
    if len(groups) > len(nodes):
        blocks.append(text_block(f"{len(groups) - len(nodes)} later executes are left out."))
    return picture("executes", "Executes and what they hand on", blocks)


def _node_head(group: TiledExecutes, left: float, y: float) -> Markup:
    runs = sum(len(member.loops) for member in group.members)
    times = f", {runs:,} times" if runs > 1 else ""
    text = f"{numbered(group)}{times}, {len(group.op.cores)} cores"
    return label(text, left + 8.0, y + 15.0, INNER - left - 16.0)


def _writer(
    written: Sequence[tuple[_Operand, int, float]], operand: _Operand
) -> tuple[_Operand, int, float] | None:
    """The last one that wrote some of it."""
    return next((each for each in reversed(written) if each[0].meets(operand)), None)


def _drawn_edges(edges: Sequence[_Edge], right: float) -> Iterator[Markup]:
    """Every line in a lane of its own as long as it lasts."""
    lanes: list[float] = []
    for edge in sorted(edges, key=lambda each: (each.begin, each.end)):
        free = next((k for k, end in enumerate(lanes) if end < edge.begin), len(lanes))
        lanes[free:] = [edge.end, *lanes[free + 1 :]]
        x = max(right - 12.0 - 7.0 * free, 3.0)
        path = f"M{right:g} {edge.begin:g}H{x:g}V{edge.end:g}H{right - 5:g}"
        yield tag("path", d=path, class_=edge.style)
        head = f"M{right - 6:g} {edge.end - 3:g}l6 3l-6 3"
        yield tag("path", d=head, class_=edge.style)
