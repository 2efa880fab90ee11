"""`SpyreAsyncCompile`: what generated code compiles its kernels with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spyre.torch_backend.inductor.compiled_kernel import CompiledKernel
from spyre.torch_backend.inductor.op_spec import Spec


class SpyreAsyncCompile:
    """Makes kernels at once; the name is that of Inductor's counterpart. For any thread.

    ``symbolic`` and ``unrolled``: form of the bundles, as of `generate_bundle`.
    """

    def __init__(self, *, symbolic: bool = True, unrolled: bool = False) -> None:
        self.symbolic = symbolic
        self.unrolled = unrolled

    def sdsc(self, name: str, specs: Sequence[Spec]) -> CompiledKernel:
        """The kernel of ``specs``. Errors as of `generate_bundle`."""
        return CompiledKernel(name, specs, symbolic=self.symbolic, unrolled=self.unrolled)

    def wait(self, scope: Mapping[str, Any]) -> None:
        """Inductor's wrapper calls this before kernels run; they are all there by then."""
