"""What the host enqueues: ranges of ``torch.profiler``, and launches of the calling thread.

A range is on the thread that enqueues; what the card does is in :mod:`.watch`. Any thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from spyre.torch_backend.compat import ProfilerRange, profiler_is_on
from spyre.torch_backend.program.recording import ThreadValue

if TYPE_CHECKING:
    from spyre.hw.linking.linked_program import LinkedProgram
    from spyre.torch_backend.program.compiled import CompiledProgram

P = ParamSpec("P")
R = TypeVar("R")

TO_CARD = "spyre::copy to card"
TO_HOST = "spyre::copy to host"
ON_CARD = "spyre::copy on card"
_NOTHING = nullcontext()


def launch_range(name: str) -> str:
    """What the range of a program is called."""
    return f"spyre::{name}"


def profiled(name: str) -> AbstractContextManager[Any]:
    """A range ``name`` of the profiler, if one runs."""
    if profiler_is_on():
        found: AbstractContextManager[Any] = ProfilerRange(name)
        return found
    return _NOTHING


def in_range(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The function with a range around every call."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not profiler_is_on():
                return function(*args, **kwargs)
            with ProfilerRange(name):
                return function(*args, **kwargs)

        return call

    return decorate


_launched: ThreadValue[list[tuple[CompiledProgram, tuple[int, ...]]] | None] = ThreadValue(None)


def note_launch(program: CompiledProgram, addresses: Sequence[int]) -> None:
    """Tell whoever watches this thread that ``program`` is launched."""
    if _launched.value is not None:
        _launched.value.append((program, tuple(addresses)))


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
    with _launched.set_to(launches.found):
        yield launches
