"""The passes on ir.Operations before scheduling, in the order of the compiler.

They run when a graph gets its scheduler. Of the documented order (hardware reference §4):

* ``remove_dead_code``, ``propagate_layouts`` and ``restickify`` (choosing lanes, final layouts and
  inserting copies in one) are here.
* Padding of a matmul's K to whole sticks is left to the kernel's emission (`Operations.matmul`):
  only there is known which lanes hold zeros already.
* Constants are numbers in bodies; a kernel has each of them once (`Lowering.constant`).
* Named dims, dim hints, coarse tiling and span reduction come after these; work division and LX
  planning see the OpSpecs of a finished kernel.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spyre import config
from spyre.torch_backend.inductor.passes.deadcode import remove_dead_code
from spyre.torch_backend.inductor.passes.printing import printed
from spyre.torch_backend.inductor.passes.propagate_layouts import propagate_layouts
from spyre.torch_backend.inductor.passes.restickify import restickify

log = logging.getLogger(__name__)

Pass = Callable[[Any], None]

PRE_SCHEDULING_PASSES: tuple[Pass, ...] = (remove_dead_code, propagate_layouts, restickify)
"""Every one changes the graph in place."""


def run(graph: Any) -> None:
    """All passes on ``graph``, once. Belongs to the thread that compiles it."""
    if getattr(graph, "spyre_passes_done", False):
        return
    graph.spyre_passes_done = True
    for number, change in enumerate(PRE_SCHEDULING_PASSES):
        change(graph)
        _show(graph, number, change.__name__)


def settings() -> str:
    """What else than sources the passes depend on, for cache keys."""
    return f"stick optimizer {config.GLOBAL_STICK_OPTIMIZER.read()}"


def _show(graph: Any, number: int, name: str) -> None:
    directory = config.DUMP_PASSES.read()
    if not directory and not log.isEnabledFor(logging.DEBUG):
        return
    text = printed(graph)
    log.debug("after %s:\n%s", name, text)
    if directory:
        _write(Path(directory) / f"graph{_number(graph)}_{number}_{name}.txt", text)


def _number(graph: Any) -> str:
    return f"{graph.graph_id or 0}{'_backward' if graph.is_backward else ''}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.{os.getpid()}")
    written.write_text(text + "\n")
    written.replace(path)
