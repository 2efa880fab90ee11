"""The map of a mismatch as a section of the report: which execute, which cores, which elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from spyre.runtime.first_divergence import Deviation, ExecuteVerdict, FirstDivergence
from spyre.runtime.profile.kernels import Float64Array
from spyre.runtime.profile.report.html import Frame, Markup, chart, inside, tag

_ROWS, _COLUMNS = 32, 64
_CORES = Frame(height=64.0, left=110.0, bottom=30.0)
_ELEMENTS = Frame(height=360.0, left=110.0)


def mismatch_section(watched: FirstDivergence) -> Markup:
    """What `FirstDivergence` has found; that nothing is known to be wrong where it has not."""
    found = watched.found
    if found is None:
        return tag("p", "No execute deviates from a value that the function has.")
    of = f"output {found.value}" if found.is_of_output else f"execute {found.number}"
    return inside(
        [
            tag("pre", str(found.to_finding())),
            tag("p", f"Wrong elements of {of}: the fuller a cell, the more of its elements."),
            _cores(found),
            _elements(found),
            tag("ul", map(_verdict, _before(watched)), class_="facts"),
        ]
    )


def _cores(found: Deviation) -> Markup:
    """A cell per core."""
    shares = found.by_core
    names = [f"core {core}" if core >= 0 else "no core" for core in shares]
    cells = list(_cells(_CORES, np.array([list(shares.values())]), names))
    label = tag("text", "cores", x=_CORES.left - 8, y=_CORES.top + 14, class_="tick end")
    ends = [(names[0], _CORES.left, "tick"), (names[-1], _CORES.end, "tick end")]
    ticks = [
        tag("text", name, x=x, y=_CORES.base + 16, class_=style)
        for name, x, style in ends[: len(names)]
    ]
    return chart(_CORES, "Share of wrong elements per core", [label, *cells, *ticks])


def _elements(found: Deviation) -> Markup:
    """The tile, its outer dims one below another, in blocks."""
    rows = found.wrong.reshape(-1, found.wrong.shape[-1])
    shares = np.array(
        [
            [part.mean() for part in np.array_split(block, min(_COLUMNS, rows.shape[1]), axis=1)]
            for block in np.array_split(rows, min(_ROWS, len(rows)), axis=0)
        ]
    )
    outer = " x ".join(f"{d} {n}" for d, n in zip(found.dims, found.wrong.shape, strict=True))
    *_, last = found.dims
    middle = (_ELEMENTS.left + _ELEMENTS.end) / 2
    names = [
        tag("text", text, x=x, y=y, class_=style)
        for text, x, y, style in (
            ("0", _ELEMENTS.left - 8, _ELEMENTS.top + 10, "tick end"),
            (f"{len(rows) - 1:,}", _ELEMENTS.left - 8, _ELEMENTS.base, "tick end"),
            ("0", _ELEMENTS.left, _ELEMENTS.base + 16, "tick"),
            (f"{rows.shape[1] - 1:,}", _ELEMENTS.end, _ELEMENTS.base + 16, "tick end"),
            (f"{outer}, {last} to the right", middle, _ELEMENTS.height - 6, "axis middle"),
        )
    ]
    return chart(_ELEMENTS, "Share of wrong elements", [*_cells(_ELEMENTS, shares), *names])


def _cells(frame: Frame, shares: Float64Array, names: Sequence[str] = ()) -> Iterator[Markup]:
    rows, columns = shares.shape
    width, height = (frame.end - frame.left) / columns, (frame.base - frame.top) / rows
    for (row, column), share in np.ndenumerate(shares):
        name = f"{names[column]}: " if names else ""
        yield tag(
            "rect",
            tag("title", f"{name}{share:.0%} wrong"),
            x=frame.left + column * width,
            y=frame.top + row * height,
            width=width,
            height=height,
            class_="content colour-5",
            fill_opacity=f"{0.06 + 0.94 * share:.2f}",
        )


def _before(watched: FirstDivergence) -> Iterator[ExecuteVerdict]:
    for verdict in watched.verdicts.values():
        if verdict.deviated:
            return
        yield verdict


def _verdict(verdict: ExecuteVerdict) -> Markup:
    known = f"agrees with {verdict.value}" if verdict.agreed else "no value is known"
    return tag("li", f"before it, execute {verdict.number}: {verdict.operation}: {known}")
