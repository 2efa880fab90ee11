"""The pictures of a program as files: layouts, cores, tiles, executes, and a page with all of them.

``spyre explain PATH --svg DIR`` and the tutorial use them. Everything is drawn from the addresses
in the program; nothing is run, and numba is not imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from spyre.errors import ProfileError
from spyre.files import atomic_write
from spyre.runtime.drawing import Markup, Picture, document, tag, theme_button
from spyre.runtime.pictures.executes import cores_picture, graph_picture, tiles_picture
from spyre.runtime.pictures.layouts import PicturedTensor, layout_picture
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
        spec = buffer.spec
        if spec is not None:
            tensor = PicturedTensor(
                spec.name, spec.shape, spec.strides, spec.dtype_name, spec.layout
            )
            yield layout_picture(tensor)
    for group in groups[:MAX_GROUPS]:
        yield cores_picture(group)
        if group.nest:
            yield tiles_picture(group)


def write_pictures(run: Run, directory: Path, title: str) -> list[Path]:
    """Write every picture as SVG and all in ``index.html``; return the paths, the page first.

    ``title``: name of the program on the page. ProfileError SPY782 if they cannot be written;
    other errors as of `pictures_of`.
    """
    pictures = list(pictures_of(run))
    files = {f"{each.name}.svg": each.svg for each in pictures}
    files = {"index.html": _page(title, pictures), **files}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with atomic_write(directory / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProfileError(
            "SPY782",
            f"cannot write pictures into {directory}",
            expected="a directory that may be written",
            found=str(error.strerror),
        ) from error
    return [directory / name for name in files]


_STYLE = """
main { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); align-items: start; margin-top: 1rem; }
figure svg { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 8px; }
"""  # noqa: E501


def _page(name: str, pictures: Sequence[Picture]) -> str:
    title = f"Pictures of {name}"
    figures = [tag("figure", Markup(each.svg), id=each.name) for each in pictures]
    body = [tag("header", [tag("h1", title), theme_button()]), tag("main", figures)]
    return document(title, body, _STYLE)
