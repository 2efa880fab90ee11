"""Objects as a notebook shows them: pictures and tables instead of their repr.

``import spyre`` calls `register` where IPython runs; nothing is loaded before an object is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def register(shell: Any) -> None:
    """Let an IPython shell show objects of `SHOWN` as HTML."""
    formatter = shell.display_formatter.formatters["text/html"]
    for (module, name), function in SHOWN.items():
        formatter.for_type_by_name(module, name, function)


def bundle_html(bundle: Any) -> str:
    """Return the graph of a bundle's executes, and its operations in words."""
    from spyre.errors import SpyreError
    from spyre.mlir.bundle import load_bundle
    from spyre.mlir.explain import explain_operation
    from spyre.runtime.drawing import Markup, inside, tag
    from spyre.runtime.pictures import pictures_of
    from spyre.runtime.run import RunOptions, describe_run

    try:
        run = describe_run(bundle, load_bundle, RunOptions(check=False))
        graph = Markup(next(iter(pictures_of(run))).svg)
    except SpyreError as error:  # such as a parameter without a value
        graph = tag("pre", str(error))
    operations = [bundle.operation(name) for name in bundle.sdscs]
    texts = [tag("pre", explain_operation(operation)) for operation in operations]
    words = tag("details", [tag("summary", f"{len(texts)} operations"), *texts])
    return inside([graph, words])


def result_html(result: Any) -> str:
    """Return a table of the outputs of a run, and its findings."""
    from spyre.runtime.drawing import inside

    rows = []
    for number, tensor in enumerate(result.output_tensors):
        compared = result.comparisons.get(number)
        outcome = "not compared" if compared is None else "as expected" if compared.ok else "wrong"
        rows.append((tensor.name, str(list(tensor.shape)), tensor.dtype_name, outcome))
    head = ("output", "shape", "dtype", "outcome")
    return inside([_table(head, rows), *map(finding_html, result.findings)])


def profile_html(profile: Any) -> str:
    """Return the table of a profile with its colours, and the lines below it."""
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), record=True, width=160)
    console.print(profile.table())
    for line in str(profile).rpartition("\n\n")[2].splitlines():
        console.print(line, highlight=False, markup=False)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def block_html(block: Any) -> str:
    """Return the profiles of the cards that a block of ``torch.spyre.profile`` used."""
    return "".join(map(profile_html, block.cards.values()))


def finding_html(finding: Any) -> str:
    """Return a finding as the command line prints it."""
    from spyre.runtime.drawing import tag

    return tag("pre", str(finding))


def tensor_html(tensor: Any) -> str:
    """Return the layout of a tensor on the card."""
    from spyre.runtime.arguments import ArgumentSpec
    from spyre.runtime.pictures import layout_picture
    from spyre.runtime.program import Role

    spec = ArgumentSpec(
        *(0, tensor.name, Role.INPUT, tensor.shape, tensor.dtype, tensor.layout, tensor.strides)
    )
    return layout_picture(spec).svg


def layout_html(layout: Any) -> str:
    """Return the dimensions of a layout, such as `device_tensor_layout` of a torch tensor."""
    from spyre.runtime.drawing import inside, tag

    steps = zip(layout.device_size, layout.stride_map, strict=True)
    rows = [(str(axis), str(size), str(step)) for axis, (size, step) in enumerate(steps)]
    text = f"{layout.device_dtype}, {layout.element_arrangement}, {layout.device_bytes:,} bytes"
    return inside([_table(("device dim", "extent", "host step"), rows), tag("p", text)])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    from spyre.runtime.drawing import tag

    body = [tag("tr", [tag("td", cell) for cell in row]) for row in rows]
    top = tag("tr", [tag("th", name) for name in head])
    return tag("table", [tag("thead", top), tag("tbody", body)])


SHOWN: dict[tuple[str, str], Callable[[Any], str]] = {
    ("spyre.mlir.bundle", "Bundle"): bundle_html,
    ("spyre.runtime.run.session", "RunResult"): result_html,
    ("spyre.runtime.profile.profile", "Profile"): profile_html,
    ("spyre.torch_backend.observe", "profile"): block_html,
    ("spyre.errors", "Finding"): finding_html,
    ("spyre.runtime.memory.allocator", "SpyreTensor"): tensor_html,
    ("spyre.layout.tensor_layout", "SpyreTensorLayout"): layout_html,
}
"""Functions to HTML by module and name of a type."""
