"""Programs that a thread launches, eager and compiled, with the addresses of their arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spyre.torch_backend.program import CompiledProgram, launches_reported_to

if TYPE_CHECKING:
    from spyre.hw.linking import LinkedProgram


class Launches:
    """Programs launched, in order, with the addresses of their arguments."""

    def __init__(self) -> None:
        self.programs: list[tuple[CompiledProgram, tuple[int, ...]]] = []

    @property
    def linked(self) -> tuple[LinkedProgram, ...]:
        """What the driver ran for each, linked again where it is no longer known."""
        return tuple(program.linked_at(addresses) for program, addresses in self.programs)


@contextmanager
def launches_noted() -> Iterator[Launches]:
    """Programs that this thread launches in the block; copies are none."""
    launches = Launches()
    with launches_reported_to(
        lambda program, addresses: launches.programs.append((program, addresses))
    ):
        yield launches
