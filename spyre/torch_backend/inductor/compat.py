"""Everything private of torch's Inductor that this package touches, each symbol once.

``tests/torch_backend/inductor/test_compat.py`` has a canary per symbol. Importing this loads
Inductor.
"""

from __future__ import annotations

from typing import Any

from torch._inductor import ir
from torch._inductor.dependencies import MemoryDep
from torch._inductor.ops_handler import WrapperHandler
from torch._inductor.scheduler import FusedSchedulerNode
from torch._inductor.virtualized import V

__all__ = [
    "FusedSchedulerNode",
    "MemoryDep",
    "V",
    "WrapperHandler",
    "clear_caches",
    "compiled_input_index",
    "ir",
]


def clear_caches(node: Any) -> None:
    """Forget what an IR node has derived from ranges, body and layout that changed since."""
    for name in [n for n in vars(node) if n.startswith("__") and n.endswith("_cache")]:
        object.__delattr__(node, name)


def compiled_input_index(placeholder: Any) -> int | None:
    """Which argument of the function given to ``compile_fx`` a placeholder after AOTAutograd is.

    None for what is no such argument, as tangents and saved intermediates are.
    """
    origin = placeholder.meta.get("desc")
    if type(origin).__name__ != "PlainAOTInput":
        return None
    found: int = origin.idx
    return found
