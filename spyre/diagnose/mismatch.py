"""The first deviation from a function: a text map, a JSON object, and a section of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.diagnose.first_divergence import Deviation, ExecuteVerdict, FirstDivergence
from spyre.runtime.drawing import Frame, Markup, Section, chart, inside, rectangle, tag

Float64Array = npt.NDArray[np.float64]

# --- text -------------------------------------------------------------------------------------

NEARLY_ALL = 0.9
"""Share of wrong elements from which a map shows nothing, unless one of `_PARTS` is right."""
_PARTS = ((16, 1), (1, 64), (8, 8))
"""Numbers of blocks, as [rows, columns], that the wrong tile is cut into."""
_SHADES = ".123456789#"
"""Share of wrong elements, in tenths: none, …, all."""


def map_lines(deviation: Deviation) -> list[str]:
    """A character per core and per block of the wrong tile; one line if it is wrong everywhere."""
    shares = deviation.by_core
    loops = f", loop indices {deviation.location.loop_indices}"
    where = loops if deviation.location.loop_indices else ""
    cores = f"cores {min(shares)} to {max(shares)}" if len(shares) > 1 else f"core {min(shares)}"
    of = f"execute {deviation.number}{where}"
    if deviation.is_of_output:
        of = f"output {deviation.value}"
    worst = min(_wrong_shares(deviation, *blocks).min() for blocks in _PARTS)
    if (share := float(deviation.wrong.mean())) >= NEARLY_ALL and worst >= 0.5:
        return [f"mismatch of {of}: {share:.0%} of the elements are wrong, everywhere"]
    lines = [f"mismatch map of {of} ('.' right, '#' all wrong)"]
    if not deviation.is_of_output:
        lines.append(f"  {cores}: {''.join(map(_shade, shares.values()))}")
    shown = _extents_text(deviation)
    rows = _wrong_shares(deviation, 16, 64).tolist()
    return [*lines, f"  elements, {shown}:", *(f"    {''.join(map(_shade, row))}" for row in rows)]


def _extents_text(deviation: Deviation) -> str:
    pairs = zip(deviation.dims, deviation.wrong.shape, strict=True)
    return " x ".join(f"{dim} {extent}" for dim, extent in pairs)


def _wrong_shares(deviation: Deviation, most_rows: int, most_columns: int) -> Float64Array:
    """Shares of wrong elements in blocks of the tile, [row, column] of blocks.

    Rows are the steps of its outer dims, columns the innermost dim.
    """
    rows = deviation.wrong.reshape(-1, deviation.wrong.shape[-1])
    return np.array(
        [
            [
                part.mean()
                for part in np.array_split(block, min(most_columns, rows.shape[1]), axis=1)
            ]
            for block in np.array_split(rows, min(most_rows, len(rows)), axis=0)
        ]
    )


def _shade(share: float) -> str:
    inner = len(_SHADES) - 2
    if share in (0.0, 1.0):
        return _SHADES[-1 if share else 0]
    return _SHADES[1 + min(inner - 1, int(share * inner))]


def verdict_lines(search: FirstDivergence) -> list[str]:
    """A line per execute before the one that deviates, marked if its result is no known value."""
    lines = ["executes before it ('?': the result is no known value):"]
    for v in _before(search):
        mark = " " if v.agreed else "?"
        lines.append(f"{mark} {v.number:3} {v.operation:14} {v.sdsc}: {v}")
    return lines if len(lines) > 1 else []


def _before(search: FirstDivergence) -> Iterator[ExecuteVerdict]:
    for verdict in search.verdicts.values():
        if verdict.deviated:
            return
        yield verdict


def deviation_object(deviation: Deviation) -> dict[str, Any]:
    """The deviation as a JSON object."""
    place = deviation.location
    return {
        "execute": None if deviation.number < 0 else deviation.number,
        "sdsc": place.sdsc,
        "operation": deviation.operation,
        "tensor": place.tensor,
        "loop_indices": place.loop_indices,
        "core": place.core,
        "reads": deviation.is_read,
        "value": deviation.value,
        "dims": deviation.dims,
        "index": deviation.worst,
        "expected": deviation.expected,
        "found": deviation.found,
        "mismatched": int(deviation.wrong.sum()),
        "total": deviation.wrong.size,
        "mismatched_share_by_core": {str(k): v for k, v in deviation.by_core.items()},
    }


# --- report -----------------------------------------------------------------------------------

_CORE_FRAME = Frame(height=64.0, left=110.0, bottom=30.0)
_ELEMENT_FRAME = Frame(height=360.0, left=110.0)


def mismatch_section(search: FirstDivergence) -> Section:
    """Return the section of a report on the deviation that ``search`` found, if any."""
    found = search.found
    if found is None:
        shown = tag("p", "No execute deviates from a value that the function has.")
        return "mismatch", "Mismatch", shown
    of = f"output {found.value}" if found.is_of_output else f"execute {found.number}"
    parts = [
        tag("pre", str(found.to_finding())),
        tag("p", f"Wrong elements of {of}: the fuller a cell, the more of its elements."),
        _wrong_cores(found),
        _wrong_elements(found),
        tag("ul", map(_verdict, _before(search)), class_="facts"),
    ]
    return "mismatch", "Mismatch", inside(parts)


def _wrong_cores(found: Deviation) -> Markup:
    """Draw a cell per core, darker the more of its elements are wrong."""
    shares = found.by_core
    names = [f"core {core}" if core >= 0 else "no core" for core in shares]
    cells = list(_share_cells(_CORE_FRAME, np.array([list(shares.values())]), names))
    label = tag("text", "cores", x=_CORE_FRAME.left - 8, y=_CORE_FRAME.top + 14, class_="tick end")
    ends = [(names[0], _CORE_FRAME.left, "tick"), (names[-1], _CORE_FRAME.end, "tick end")]
    ticks = [
        tag("text", name, x=x, y=_CORE_FRAME.base + 16, class_=style)
        for name, x, style in ends[: len(names)]
    ]
    return chart(_CORE_FRAME, "Share of wrong elements per core", [label, *cells, *ticks])


def _wrong_elements(found: Deviation) -> Markup:
    """Draw the tile in blocks: rows are the steps of its outer dims, columns the innermost dim."""
    rows = found.wrong.reshape(-1, found.wrong.shape[-1])
    middle = (_ELEMENT_FRAME.left + _ELEMENT_FRAME.end) / 2
    names = [
        tag("text", text, x=x, y=y, class_=style)
        for text, x, y, style in (
            ("0", _ELEMENT_FRAME.left - 8, _ELEMENT_FRAME.top + 10, "tick end"),
            (f"{len(rows) - 1:,}", _ELEMENT_FRAME.left - 8, _ELEMENT_FRAME.base, "tick end"),
            ("0", _ELEMENT_FRAME.left, _ELEMENT_FRAME.base + 16, "tick"),
            (f"{rows.shape[1] - 1:,}", _ELEMENT_FRAME.end, _ELEMENT_FRAME.base + 16, "tick end"),
            (
                f"{_extents_text(found)}, {found.dims[-1]} to the right",
                middle,
                _ELEMENT_FRAME.height - 6,
                "axis middle",
            ),
        )
    ]
    return chart(
        _ELEMENT_FRAME,
        "Share of wrong elements",
        [*_share_cells(_ELEMENT_FRAME, _wrong_shares(found, 32, 64)), *names],
    )


def _share_cells(frame: Frame, shares: Float64Array, names: Sequence[str] = ()) -> Iterator[Markup]:
    rows, columns = shares.shape
    width, height = (frame.end - frame.left) / columns, (frame.base - frame.top) / rows
    for (row, column), share in np.ndenumerate(shares):
        name = f"{names[column]}: " if names else ""
        x, y = frame.left + column * width, frame.top + row * height
        title, opacity = f"{name}{share:.0%} wrong", f"{0.06 + 0.94 * share:.2f}"
        style = "content colour-5"
        yield rectangle(x, y, width, height, style, title, radius=None, opacity=opacity)


def _verdict(verdict: ExecuteVerdict) -> Markup:
    return tag("li", f"before it, execute {verdict.number}: {verdict.operation}: {verdict}")
