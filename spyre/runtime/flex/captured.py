"""Work of a stream, kept to be run again in one go: what `FlexStream.captured` gives.

A captured block runs as any other; beside that its launches and copies are kept, with the memory
they use, at the addresses they have. Replayed, they are one job: the host spends a few microseconds
on each, instead of what finding, binding and submitting it takes. Where somebody looks at single
jobs (recordings, runners of their own) they are submitted one by one, as in the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from spyre.errors import UnsupportedError
from spyre.runtime.flex.job import DMA, JobPlanStep, KernelLaunch, LaunchContext
from spyre.runtime.flex.scheduling import Engine, Stage, Stages, Work

if TYPE_CHECKING:
    from spyre.runtime.flex.device import FlexDevice

Call = Callable[[], None]


class CapturedWork:
    """Launches and copies in the order they were submitted. Filled by one stream, in a block; after
    that any thread may ask for `work`.
    """

    def __init__(self, device: FlexDevice) -> None:
        self.device = device
        self.contexts: list[LaunchContext] = []
        self._stages: Stages | None = None

    def note(self, work: Work) -> None:
        """Keep what is about to be submitted. UnsupportedError SPY888 where that cannot be."""
        context = work.payload
        if not isinstance(context, LaunchContext):
            raise refusal("events, callbacks and collectives in a captured block")
        if isinstance(context, KernelLaunch) and not context.is_bound:
            raise refusal(f"{context.plan.name}: a launch over tiles, or with a correction tensor")
        self.contexts.append(context)

    def memory(self) -> Iterator[object]:
        """What the launches and copies keep alive, some of it several times."""
        for context in self.contexts:
            yield from context.keep_alive

    def work(self) -> Iterator[Work]:
        """What a stream is to be given for one replay."""
        if self.device.is_recorded or self.device.runner is not None:
            yield from (_again(context) for context in self.contexts)
        elif self.contexts:
            if self._stages is None:
                self._stages = Stages(_stages(self.contexts))
            yield Work(self._stages, 1, self, is_large=True)


def refusal(what: str) -> UnsupportedError:
    """``what`` cannot be captured."""
    return UnsupportedError(
        "SPY888",
        f"{what} cannot be captured for replay",
        expected="launches on one stream, and copies whose values the host does not wait for",
        hint="move it out of the block",
    )


def brings_values(work: Work) -> bool:
    """True for copies to the host that have not run yet: whoever waits for them wants values."""
    context = work.payload
    return isinstance(context, LaunchContext) and any(map(_is_to_host, context.plan.steps))


def _is_to_host(step: JobPlanStep) -> bool:
    return isinstance(step, DMA) and not step.to_device


def _again(context: LaunchContext) -> Work:
    """A launch or a copy like one that has run; each has an outcome of its own."""
    if isinstance(context, KernelLaunch):
        same: LaunchContext = KernelLaunch(
            context.plan,
            context.device,
            context.launch_plan,
            context.bases,
            context.keep_alive,
            context.runner,
            context.origin,
        )
    else:
        plan, device, kept = context.plan, context.device, context.keep_alive
        same = LaunchContext(plan, device, kept, is_large=context.is_large)
    return Work(same.plan.stages, 1, same, is_large=same.is_large, chunk=same.chunk)


def _stages(contexts: Iterable[LaunchContext]) -> Iterator[Stage]:
    """A stage for each run of steps of one engine."""
    steps = (
        (stage.engine, partial(stage.run, context, 0, context.iterations))
        for context in contexts
        for stage in context.plan.stages.all
    )
    for engine, run in groupby(steps, key=lambda step: step[0]):
        yield Stage(Engine(engine), partial(_run_all, tuple(call for _, call in run)))


def _run_all(calls: tuple[Call, ...], work: CapturedWork, first: int, last: int) -> None:
    for call in calls:
        call()
