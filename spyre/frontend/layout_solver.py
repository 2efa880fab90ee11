"""``NativePermutationLayoutSolver``: addresses of buffers in a scratchpad, in a given order.

torch-spyre has that solver twice, bit for bit the same: in Python, and in the extension for speed.
Here the one in Python does the work behind the extension's interface: its order can be read but not
written, and wrong arguments are ValueErrors. Its module imports the extension, so it is imported by
the first solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from spyre.frontend.formats import named_as_extension

MODULE = "torch_spyre._inductor.scratchpad.permutation_layout"


@named_as_extension("PermutationView")
class OrderView(Sequence[int]):
    """A live view of the order of a solver's buffers."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, solver: Any) -> None:
        self._solver = solver

    def __len__(self) -> int:
        return len(self._solver.permutation)

    def __getitem__(self, index: Any) -> Any:
        return self._solver.permutation[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __copy__(self) -> list[int]:
        return list(self)

    def __deepcopy__(self, memo: Any) -> list[int]:
        return list(self)

    def __repr__(self) -> str:
        return repr(list(self))


@named_as_extension("NativePermutationLayoutSolver")
class LayoutSolver:
    """(buffers, permutation, capacity, alignment=128, eligible=None), bytes. ``buffers`` are
    torch-spyre's, which `finalize` writes the addresses into.
    """

    def __init__(
        self,
        buffers: list[Any],
        permutation: Sequence[int],
        capacity: int,
        alignment: int = 128,
        eligible: list[bool] | None = None,
    ) -> None:
        if alignment <= 0:
            raise ValueError(f"alignment must be positive, got {alignment}")
        for buffer in buffers:
            if not buffer.uses:
                raise ValueError(f"buffer {buffer.name} has no uses")
        made = import_module(MODULE).PermutationBasedLayoutSolver
        self._solver = made(buffers, list(permutation), capacity, alignment, eligible)

    @property
    def permutation(self) -> OrderView:
        return OrderView(self._solver)

    def rotate(self, i: int, j: int) -> float:
        """Move the buffer at position ``i`` to ``j``; returns the change of quality."""
        self._check(i)
        self._check(j)
        return float(self._solver.rotate(i, j))

    def resize(self, idx: int, new_size: int) -> float:
        """Change the bytes of a buffer; returns the change of quality."""
        self._check(idx)
        return float(self._solver.resize(idx, new_size))

    def set_eligible(self, idx: int, flag: bool) -> float:
        """Allow or forbid a buffer in the scratchpad; return the change of quality."""
        self._check(idx)
        return float(self._solver.set_eligible(idx, flag))

    def copy(self) -> LayoutSolver:
        """Another solver in the same state, which moves alone."""
        clone = LayoutSolver.__new__(LayoutSolver)
        clone._solver = self._solver.copy()
        return clone

    def _check(self, position: int) -> None:
        count = len(self._solver.permutation)
        if not 0 <= position < count:
            raise ValueError(f"index {position} out of range [0, {count})")

    def __getattr__(self, name: str) -> Any:
        # Everything else is the solver's; its own attribute is missing only while it is made.
        if name == "_solver":
            raise AttributeError(name)
        return getattr(self._solver, name)
