"""The pictures of a program as files: layouts, cores, tiles, executes, and a page with all of them.

``spyre explain PATH --svg DIR`` and the tutorial use them. Everything is drawn from the addresses
in the program; nothing is run, and numba is not imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from spyre.dtypes import STICK_BYTES
from spyre.errors import ProfileError
from spyre.files import atomic_write
from spyre.layout import SpyreTensorLayout, contiguous_strides, device_coordinate, transfer_geometry
from spyre.runtime.arguments import ArgumentSpec
from spyre.runtime.drawing import (
    COLOURS,
    INNER,
    Block,
    Markup,
    Picture,
    document,
    inside,
    label,
    picture,
    rectangle,
    shown_indices,
    tag,
    text_block,
    theme_button,
)
from spyre.runtime.pictures.executes import cores_picture, graph_picture, tiles_picture
from spyre.runtime.run import Run, traced_executes
from spyre.runtime.tracing import tile_groups

MAX_GROUPS = 24
"""Executes (those of one loop count once) whose cores and tiles are drawn."""


def pictures_of(run: Run) -> Iterator[Picture]:
    """Yield the graph, then every layout, then cores and tiles of the executes in program order.

    LaunchError for parameters without a value and layouts that do not fit their tensors.
    """
    groups = tuple(tile_groups(traced_executes(run)))
    yield graph_picture(groups)
    for buffer in run.buffers.values():
        if buffer.spec is not None:
            yield layout_picture(buffer.spec)
    for group in groups[:MAX_GROUPS]:
        yield cores_picture(group)
        if group.nest:
            yield tiles_picture(group)


def write_pictures(run: Run, directory: Path, path: str) -> list[Path]:
    """Write every picture as SVG and all in ``index.html``; return the paths, the page first.

    ``path``: of the program, whose name heads the page. ProfileError SPY782 if pictures cannot be
    written; other errors as of `pictures_of`.
    """
    pictures = list(pictures_of(run))
    files = {f"{each.name}.svg": each.svg for each in pictures}
    files = {"index.html": _page(Path(path).resolve().name, pictures), **files}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with atomic_write(directory / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # a name with NUL is a ValueError
        message = f"cannot write pictures into {directory}"
        expected = "a directory that may be written"
        found = str(getattr(error, "strerror", None) or error)
        raise ProfileError("SPY782", message, expected=expected, found=found) from error
    return [directory / name for name in files]


_STYLE = """
main { columns: 26rem; column-gap: 1rem; margin-top: 1rem; }
figure { break-inside: avoid; padding-bottom: 1rem; }
figure svg { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 8px; }
"""


def _page(name: str, pictures: Sequence[Picture]) -> str:
    title = f"Pictures of {name}"
    figures = [tag("figure", Markup(each.svg), id=each.name) for each in pictures]
    body = [tag("header", [tag("h1", title), theme_button()]), tag("main", figures)]
    return document(title, body, _STYLE)


# --- layouts ----------------------------------------------------------------------------------

_ROWS, _COLUMNS = 7, 6


def layout_picture(tensor: ArgumentSpec) -> Picture:
    """Draw the sticks of a tensor. LaunchError SPY322 for a layout that does not fit its shape."""
    view = _view_of(tensor)
    free = {view.row_dim, view.column_dim}
    plane = ", ".join(":" if d in free else "0" for d in range(len(tensor.shape)))
    shape = " × ".join(map(str, tensor.shape)) or "scalar"
    sticks = tensor.layout.device_bytes // STICK_BYTES
    blocks = [
        text_block(
            f"{shape} {tensor.dtype_name} on the host, {sticks:,} stick{'s' * (sticks != 1)} of "
            f"{STICK_BYTES} bytes ({tensor.layout.device_size[-1]} elements) on the card."
        ),
        text_block(f"{tensor.name}[{plane}]: each cell is a stick, its number is its position in "
                   "memory.", "faint"),
        _grid(view),
        text_block("Device memory, one stick after another:", "faint"),
        _memory(view),
        text_block(_dims_text(tensor.layout), "faint"),
    ]  # fmt: skip
    return picture(f"layout-{tensor.name}", f"Layout of {tensor.name}", blocks)


class _View(msgspec.Struct, frozen=True):
    """The plane of a tensor that is drawn: host rows, with sticks along the columns.

    ``row_dim``: None if there is one row only. ``step``: elements from one stick to the next along
    the columns. ``outer``: the outermost device dim with an extent, which gives sticks their
    colours.
    """

    tensor: ArgumentSpec
    row_dim: int | None
    column_dim: int
    step: int
    rows: int
    columns: int
    outer: int

    def stick(self, row: int, column: int) -> tuple[int, int]:
        """Number in memory, and colour, of a cell's stick."""
        index = [0] * len(self.tensor.shape)
        if self.row_dim is not None:
            index[self.row_dim] = row
        if index:
            index[self.column_dim] = column * self.step
        device = device_coordinate(
            self.tensor.layout, self.tensor.shape, self.tensor.strides, index
        )
        colour = device.stick[self.outer] % COLOURS if device.stick else 0
        return device.byte_offset // STICK_BYTES, colour


def _view_of(tensor: ArgumentSpec) -> _View:
    shape, device_size = tensor.shape, tensor.layout.device_size
    column_dim = transfer_geometry(tensor.layout, shape, tensor.strides).host_dims[-1]
    step = device_size[-1]
    if column_dim < 0:  # a stick holds one value
        column_dim, step = len(shape) - 1, 1
    # The innermost other dim with an extent.
    row_dims = [d for d in range(len(shape)) if d != column_dim and shape[d] > 1]
    return _View(
        tensor,
        row_dims[-1] if row_dims else None,
        column_dim,
        step,
        shape[row_dims[-1]] if row_dims else 1,
        -(-shape[column_dim] // step) if shape else 1,
        next((k for k, size in enumerate(device_size[:-1]) if size > 1), 0),
    )


def _grid(view: _View) -> Block:
    """Draw the plane on the host: a cell per stick, with element numbers above and rows beside."""
    left, top, height = 52.0, 16.0, 20.0
    columns, rows = shown_indices(view.columns, _COLUMNS), shown_indices(view.rows, _ROWS)
    width = (INNER - left) / len(columns)
    extent = view.tensor.shape[view.column_dim] if view.tensor.shape else 1
    pieces = []
    for x, column in enumerate(columns):
        if column is not None:
            last = min((column + 1) * view.step, extent) - 1
            first = column * view.step
            text = f"{first}–{last}" if last > first else f"{first}"
            middle = left + (x + 0.5) * width
            pieces.append(label(text, middle, 11.0, width, "faint middle"))
    for y, row in enumerate(rows):
        line = top + y * height
        name = "⋮" if row is None else f"row {row}"
        pieces.append(label(name, left - 6.0, line + 14.0, left, "faint end"))
        for x, column in enumerate(columns):
            edge = left + x * width
            if row is None or column is None:
                sign = "⋱" if row is None and column is None else "⋮" if row is None else "…"
                pieces.append(label(sign, edge + width / 2, line + 14.0, width, "faint middle"))
                continue
            number, colour = view.stick(row, column)
            title = f"row {row}, elements from {column * view.step}: stick {number}"
            box = rectangle(edge + 1, line + 1, width - 2, height - 2, f"own colour-{colour}",
                            title)  # fmt: skip
            pieces += [box, label(f"{number:,}", edge + width / 2, line + 14.0, width, "middle")]
    return Block(top + len(rows) * height, inside(pieces))


def _memory(view: _View) -> Block:
    """Draw device memory, one box per step of the outermost device dim, in the grid's colours."""
    layout = view.tensor.layout
    sizes = layout.device_size[:-1]
    parts = sizes[view.outer] if sizes else 1
    each = layout.device_bytes // STICK_BYTES // max(parts, 1)
    height, pieces = 20.0, []
    shown = shown_indices(parts, 6)
    for y, part in enumerate(shown):
        if part is None:
            pieces.append(label("⋮", INNER / 2, y * height + 14.0, 20.0, "faint middle"))
            continue
        first = part * each
        text = f"sticks {first:,} to {first + each - 1:,}" if each > 1 else f"stick {first:,}"
        pieces.append(
            rectangle(0, y * height + 1, INNER, height - 2, f"own colour-{part % COLOURS}")
        )
        pieces.append(label(text, 8.0, y * height + 14.0, INNER / 2))
        at = f"from byte {first * STICK_BYTES:,}"
        pieces.append(label(at, INNER - 8.0, y * height + 14.0, INNER / 2, "end"))
    return Block(len(shown) * height, inside(pieces))


def _dims_text(layout: SpyreTensorLayout) -> str:
    element_bits = layout.data_format.bits
    steps = [s * element_bits // 8 for s in contiguous_strides(layout.device_size)]
    joined = [" × ".join(map(str, layout.device_size)), ", ".join(f"{s:,}" for s in steps)]
    host = ", ".join(f"{s:,}" if s > 0 else "none" for s in layout.stride_map)
    return (
        f"Dims on the card, outermost first: {joined[0]}. One step is {joined[1]} bytes there, "
        f"and {host} elements on the host."
    )
