"""The command stream: every control block that was dispatched, in order, with what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spyre.errors import SpyreError
from spyre.hw.memory import AllocationHistory
from spyre.runtime.flex.job import ControlBlock, LaunchContext, NotedBlock
from spyre.runtime.flex.scheduling import Engine, Label, Work, WorkUnit, label_text
from spyre.runtime.kernel import ExecutedLaunch


@dataclass(frozen=True, slots=True)
class Command:
    """One control block or host operation that ran.

    ``order``: of submission: job, iteration, step. ``label``: ``cb N`` or ``host N``, numbered per
    card in order of submission. ``after``: labels of what had to be complete before.
    ``begin_ns``/``end_ns``: host clock. ``detail``: what the launch's way of running recorded.
    ``error``: code or type of what it raised, "" if nothing.
    """

    order: tuple[int, int, int]

    label: str
    stream_id: int
    engine: Engine
    block: ControlBlock
    after: tuple[str, ...]
    iteration: int
    begin_ns: int
    end_ns: int
    detail: Any = None
    error: str = ""

    def __str__(self) -> str:
        after = f"  after {', '.join(self.after)}" if self.after else ""
        failed = f"  failed: {self.error}" if self.error else ""
        return f"stream {self.stream_id}  {self.label:<8}{self.block}{after}{failed}"


class CommandStream:
    """What a card did while it was watched. Read it when nothing runs.

    In order of submission, which is the order of every stream; when each ran, its times say: the
    preparation of later iterations and jobs may be ahead. `str` is the golden form.
    ``memory``: what the card had allocated meanwhile, where that was watched.
    """

    def __init__(self, memory: AllocationHistory | None = None) -> None:
        self.memory = memory
        self._dispatched: list[Command] = []

    def observe(
        self, unit: WorkUnit, begin_ns: int, end_ns: int, error: BaseException | None = None
    ) -> None:
        """Note a unit: one iteration of one stage. ``error``: what it raised."""
        work, stage, iteration = unit.work, unit.stage, unit.first
        assert work.stream is not None
        if isinstance(work.payload, NotedBlock):
            begin_ns, end_ns = work.payload.begin_ns, work.payload.end_ns
        # Whoever observes runs single iterations of single stages, so a unit is one command.
        self.add(
            Command(
                (work.number, iteration, stage),
                label_text(work.label(stage, iteration)),
                work.stream.stream_id,
                work.stages.engines[stage],
                _block(work, stage, iteration),
                _dependencies(work, stage, iteration),
                iteration,
                begin_ns,
                end_ns,
                _detail(work, stage) if error is None else None,
                _error_name(error),
            )
        )

    def add(self, command: Command) -> None:
        self._dispatched.append(command)

    @property
    def commands(self) -> list[Command]:
        """All of them, in order of submission."""
        return sorted(self._dispatched, key=lambda command: command.order)

    @property
    def dispatched(self) -> list[Command]:
        """All of them, in the order in which they ended."""
        return list(self._dispatched)

    @property
    def control_blocks(self) -> list[Command]:
        """Commands the card does: DMA and compute."""
        return [c for c in self.commands if c.engine is not Engine.HOST]

    @property
    def host_operations(self) -> list[Command]:
        return [c for c in self.commands if c.engine is Engine.HOST]

    @property
    def rxpci_bytes(self) -> int:
        """Bytes the card received from the host (aiu-smi's rxpci)."""
        return self._moved_bytes("dma to device")

    @property
    def txpci_bytes(self) -> int:
        """Bytes the card sent to the host (aiu-smi's txpci)."""
        return self._moved_bytes("dma from device")

    def _moved_bytes(self, kind: str) -> int:
        blocks = (command.block for command in self._dispatched if not command.error)
        return sum(block.size_bytes for block in blocks if block.kind == kind)

    def __iter__(self) -> Iterator[Command]:
        return iter(self.commands)

    def __len__(self) -> int:
        return len(self._dispatched)

    def __str__(self) -> str:
        return "".join(f"{command}\n" for command in self.commands)


def _block(work: Work, stage: int, iteration: int) -> ControlBlock:
    context = work.payload
    if isinstance(context, LaunchContext):
        return context.plan.steps[stage].describe(context, iteration)
    if isinstance(context, NotedBlock):
        return context.block
    return ControlBlock("host", "callback")


def _detail(work: Work, stage: int) -> Any:
    context = work.payload
    if isinstance(context, NotedBlock):
        return context
    compute = work.stages.engines[stage] is Engine.COMPUTE
    return context.outcome.detail if compute and isinstance(context, LaunchContext) else None


def _error_name(error: BaseException | None) -> str:
    if error is None:
        return ""
    return error.code if isinstance(error, SpyreError) else type(error).__name__


def _dependencies(work: Work, stage: int, iteration: int) -> tuple[str, ...]:
    """Labels of what one iteration of a stage waits for."""
    labels: list[Label] = []
    stages = work.stages.all
    if stage > 0:
        labels.append(work.label(stage - 1, iteration))
    # Preparation fills a buffer of its own per iteration and waits for nothing but the step before.
    if not stages[stage].is_prep and iteration > 0:
        labels.append(work.label(stage, iteration - 1))
    elif not stages[stage].is_prep and (stage == 0 or stages[stage - 1].is_prep):
        labels += work.after
    return tuple(label_text(label) for label in labels)


def launch_of(command: Command) -> ExecutedLaunch | None:
    """The launch of a compute command; None for others, and where only copies were made.

    The detail of a tiled launch is that of the last tile which ran the kernel.
    """
    detail = command.detail
    if isinstance(detail, ExecutedLaunch) and detail.begin_ns >= command.begin_ns:
        return detail
    return None


def noted_block_of(command: Command) -> NotedBlock | None:
    """What a command shows that the scheduler did not do; None for others."""
    return command.detail if isinstance(command.detail, NotedBlock) else None
