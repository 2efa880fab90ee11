"""``spyre::run``: one aten operation in an FX graph, as the lowering that eager mode has for it.

Decompositions put it into the graph; Inductor's lowering makes ir.Operations of it, one per device
operation. It never runs by itself. ``spyre::triangle`` gives the masks some of them need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from spyre.layout import contiguous_strides
from spyre.torch_backend.eager.masks import triangle
from spyre.torch_backend.inductor.device_graph import GraphOperations, GraphValue
from spyre.torch_backend.program.value import Ints

LIBRARY = torch.library.Library("spyre", "DEF")
LIBRARY.define("run(Tensor[] operands, str call, str results) -> Tensor[]")
LIBRARY.define(
    "triangle(SymInt rows, SymInt columns, SymInt diagonal, bool lower, Device device) -> Tensor"
)

_lowerings: dict[str, Callable[[], list[GraphValue]]] = {}
"""By call text: makes the device graph; operands are inputs in the order of the node's."""


def register_call(text: str, graph: Callable[[], list[GraphValue]]) -> None:
    """Remember what a call means, for the lowering of this process."""
    _lowerings[text] = graph


def graph_of(text: str) -> list[GraphValue]:
    """The results of a call as a device graph."""
    return _lowerings[text]()


def results_text(results: Sequence[GraphValue], target: torch.Tensor | None) -> str:
    """Results as the node names them: ``float16[2,3];bool[2]``, with ``@`` strides that are not
    row-major: those of ``target``, which the one result would be written to.
    """
    strides = [_strides_as(target, value) for value in results]
    return ";".join(
        f"{v.dtype}[{_listed(v.sizes)}]" + (f"@[{_listed(row)}]" if row else "")
        for v, row in zip(results, strides, strict=True)
    )


def _strides_as(target: torch.Tensor | None, value: GraphValue) -> Ints:
    """The strides (elements) of ``target`` if ``value`` can be a dense buffer with them."""
    if target is None or value.views or value.node.place >= 0 or value.node.number is not None:
        return ()
    if tuple(target.shape) != value.sizes or target.is_contiguous():
        return ()
    strides = tuple(int(n) for n in target.stride())
    held = sorted((s, n) for s, n in zip(strides, value.sizes, strict=True) if n > 1)
    dense = all(s == prod(n for _, n in held[:k]) for k, (s, _) in enumerate(held))
    return strides if dense else ()


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def results_of(text: str) -> list[tuple[torch.dtype, Ints, Ints]]:
    """dtype, sizes and strides of every result of a `results_text`."""
    found = []
    for dtype, *rows in re.findall(r"(\w+)\[([\d,]*)\](?:@\[([\d,]*)\])?", text):
        sizes, strides = (tuple(int(n) for n in row.split(",") if n) for row in rows)
        found.append((getattr(torch, dtype), sizes, strides or contiguous_strides(sizes)))
    return found


def _fake(operands: Sequence[torch.Tensor], call: str, results: str) -> list[torch.Tensor]:
    device = operands[0].device
    return [
        torch.empty_strided(sizes, strides, dtype=dtype, device=device)
        for dtype, sizes, strides in results_of(results)
    ]


def _refuse(*_: Any) -> Any:
    raise NotImplementedError("spyre::run is for Inductor; it does not run by itself")


def _fake_triangle(
    rows: int, columns: int, diagonal: int, lower: bool, device: torch.device
) -> torch.Tensor:
    return torch.empty(rows, columns, dtype=torch.bool, device=device)


LIBRARY.impl("run", _refuse, "PrivateUse1")
LIBRARY.impl("triangle", triangle, "CompositeExplicitAutograd")
torch.library.register_fake("spyre::run", _fake, lib=LIBRARY)
torch.library.register_fake("spyre::triangle", _fake_triangle, lib=LIBRARY)
RUN = torch.ops.spyre.run.default

__all__ = ["RUN", "GraphOperations", "graph_of", "register_call", "results_of", "results_text"]
