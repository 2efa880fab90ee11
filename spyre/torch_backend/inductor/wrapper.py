"""The code Inductor writes around the bundles."""

from __future__ import annotations

from typing import Any

from spyre.torch_backend.inductor.compat import (
    PythonWrapperCodegen,
    SubgraphPythonWrapperCodegen,
    V,
)
from spyre.torch_backend.inductor.settings import settings

HEADER = """
from spyre.torch_backend.inductor.async_compile import SpyreAsyncCompile
from spyre.torch_backend.inductor.op_spec import DataFormats, LoopSpec, OpSpec, TensorArg
from spyre.torch_backend.inductor.spec_text import sympify
"""


class SpyreWrapper(PythonWrapperCodegen):  # type: ignore[misc]
    """A wrapper module whose kernels are bundles."""

    def __init__(self) -> None:
        super().__init__()
        V.graph.sizevars._simplify_loops_impl = _leave_loops

    @staticmethod
    def create(
        is_subgraph: bool,
        subgraph_name: str | None,
        parent_wrapper: Any,
        partition_signatures: Any = None,
    ) -> Any:
        """The wrapper of a graph, or of a part of it."""
        if is_subgraph:
            return SubgraphPythonWrapperCodegen(subgraph_name, parent_wrapper, partition_signatures)
        return SpyreWrapper()

    def write_header(self) -> None:
        """Imports, and where kernels are made."""
        super().write_header()
        self.imports.splice(HEADER, strip=True)
        chosen = settings()
        form = f"symbolic={chosen.bundle_symbolic_args}, unrolled={chosen.unroll_loops}"
        self.header.writeline(f"async_compile = SpyreAsyncCompile({form})")


def _leave_loops(index_vars: Any, sizes: Any, formulas: Any) -> Any:
    """Dims stay as they are: tiling names them by position."""
    return sizes, lambda x: x, lambda x: x
