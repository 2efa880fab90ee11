"""`SpyreAsyncCompile`: what generated code compiles its kernels with."""

from __future__ import annotations

from collections.abc import Sequence

from spyre.torch_backend.inductor.compat import AsyncCompile
from spyre.torch_backend.inductor.compiled_kernel import CompiledKernel, Extents
from spyre.torch_backend.inductor.kernel_notes import NO_NOTES, Notes
from spyre.torch_backend.inductor.observing import note
from spyre.torch_backend.inductor.op_spec import SizeSpec, Spec
from spyre.torch_backend.inductor.sized_kernel import SizedKernel


class SpyreAsyncCompile(AsyncCompile):  # type: ignore[misc]
    """Makes kernels at once; those of other devices are Inductor's. For any thread.

    ``symbolic`` and ``unrolled``: form of the bundles, as of `generate_bundle`.
    """

    def __init__(self, *, symbolic: bool = True, unrolled: bool = False) -> None:
        super().__init__()
        self.symbolic = symbolic
        self.unrolled = unrolled

    def sdsc(
        self,
        name: str,
        specs: Sequence[Spec],
        arguments: Sequence[Extents] = (),
        constants: Sequence[tuple[float, str]] = (),
        notes: Notes = NO_NOTES,
        sizes: Sequence[SizeSpec] = (),
    ) -> CompiledKernel | SizedKernel:
        """The kernel of ``specs``. Errors as of `generate_bundle`.

        ``arguments``: host sizes, strides and dtype each tensor must have, by arg_index, none for
        whatever the specs' device sizes fit. ``constants``: numbers and dtypes of the arguments
        behind the tensors. ``notes``: for people, by the file SPYRE_KEEP writes them to.
        ``sizes``: that only launches know; ``arguments`` may name them among their host sizes.
        """
        if sizes:
            sized = SizedKernel(name, specs, sizes, arguments, constants, notes)
            note(sized)
            return sized
        kernel = CompiledKernel(
            name,
            specs,
            arguments,
            constants,
            notes,
            symbolic=self.symbolic,
            unrolled=self.unrolled,
        )
        note(kernel)
        return kernel
