"""``spyre::run``: one aten operation in an FX graph, as the lowering that eager mode has for it.

Decompositions put it into the graph; Inductor's lowering makes ir.Operations of it, one per device
operation. It never runs by itself. ``spyre::triangle`` gives the masks some of them need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from spyre.torch_backend.eager.masks import triangle
from spyre.torch_backend.inductor.device_graph import GraphOperations, GraphValue

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


def results_text(results: Sequence[GraphValue]) -> str:
    """Results as the node names them: ``float16[2,3];bool[2]``."""
    return ";".join(f"{v.dtype}[{','.join(map(str, v.sizes))}]" for v in results)


def _parsed(text: str) -> list[tuple[torch.dtype, list[int]]]:
    found = []
    for dtype, sizes in re.findall(r"(\w+)\[([\d,]*)\]", text):
        found.append((getattr(torch, dtype), [int(n) for n in sizes.split(",") if n]))
    return found


def _fake(operands: Sequence[torch.Tensor], call: str, results: str) -> list[torch.Tensor]:
    device = operands[0].device
    return [torch.empty(sizes, dtype=dtype, device=device) for dtype, sizes in _parsed(results)]


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

__all__ = ["RUN", "GraphOperations", "graph_of", "register_call", "results_text"]
