"""Whoever wants to know which programs a thread launches, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spyre.torch_backend.thread_value import ThreadValue

if TYPE_CHECKING:
    from spyre.hw.linked_program import LinkedProgram
    from spyre.torch_backend.program.compiled import CompiledProgram

_found: ThreadValue[list[tuple[CompiledProgram, tuple[int, ...]]] | None] = ThreadValue(None)


def note_launch(program: CompiledProgram, addresses: Sequence[int]) -> None:
    """Tell whoever watches this thread that ``program`` is launched."""
    if _found.value is not None:
        _found.value.append((program, tuple(addresses)))


class Launches:
    """Programs launched, in order, with the addresses of their arguments."""

    def __init__(self) -> None:
        self.found: list[tuple[CompiledProgram, tuple[int, ...]]] = []

    @property
    def linked(self) -> tuple[LinkedProgram, ...]:
        """What the driver ran for each, linked again where it is no longer known."""
        return tuple(program.linked_at(addresses) for program, addresses in self.found)


@contextmanager
def launches_noted() -> Iterator[Launches]:
    """Programs, eager and compiled, that this thread launches in the block; copies are none."""
    launches = Launches()
    with _found.set_to(launches.found):
        yield launches
