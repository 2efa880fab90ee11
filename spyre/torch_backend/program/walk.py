"""`Walk`: an operation's tensors over common dims, between its values and its SDSC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spyre.layout.device_view import DeviceView
from spyre.mlir.sdsc_builder import Base
from spyre.torch_backend.program.emission import Division, ScratchpadPlace
from spyre.torch_backend.program.iteration import IterationDim

Bases = Sequence[Base | ScratchpadPlace]
"""Where the tensors of an operation stand, the output last."""


@dataclass(frozen=True, slots=True)
class Walk:
    """An operation's tensors over common dims, ready to be written.

    ``dims``: their roles are those of `emit_over`. ``views`` and ``bases``: of the tensors, the
    output last. ``division``: over cores, where it is decided beforehand. ``rows``: those of a
    gather's table.
    """

    dims: Sequence[IterationDim]
    views: Sequence[DeviceView]
    bases: Bases
    division: Division | None = None
    rows: int = 0
