"""The command stream: every dispatched control block, in order, with its dependencies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from spyre.errors import SpyreError
from spyre.hw.memory import AllocationHistory
from spyre.runtime.flex.blocks import ControlBlock, RecordedBlock
from spyre.runtime.flex.scheduling import Engine, Label, Work, WorkUnit, label_text
from spyre.runtime.flex.steps import JobWork
from spyre.runtime.kernel import ExecutedLaunch


class Command(msgspec.Struct, frozen=True):
    """One control block or host operation that ran.

    ``order``: position in order of submission: job, iteration, step. ``label``: ``cb N`` or
    ``host N``, numbered per card in order of submission. ``after``: labels of the commands that had
    to complete before it. ``begin_ns``/``end_ns``: host clock. ``detail``: the return value of the
    launch's runner, or the `RecordedBlock`. ``error``: code or type of the exception, "" if none.
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
    """The commands a card ran while it was recorded. Read it when nothing runs.

    Commands are in order of submission, which is the order of every stream; their times may be out
    of order, because later iterations and jobs are prepared ahead. `str` is the golden form.
    ``memory``: allocated bytes during the recording, None if not recorded.
    """

    def __init__(self, memory: AllocationHistory | None = None) -> None:
        self.memory = memory
        self._dispatched: list[Command] = []

    def observe(
        self, unit: WorkUnit, begin_ns: int, end_ns: int, error: BaseException | None = None
    ) -> None:
        """Record a unit: one iteration of one stage. ``error``: the exception it raised."""
        work, stage, iteration = unit.work, unit.stage, unit.first
        if isinstance(work.payload, RecordedBlock):
            begin_ns, end_ns = work.payload.begin_ns, work.payload.end_ns
        # An observed scheduler runs single iterations of single stages, so a unit is one command.
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
        """All commands, in order of submission."""
        return sorted(self._dispatched, key=lambda command: command.order)

    @property
    def dispatched(self) -> list[Command]:
        """All commands, in the order in which they ended."""
        return list(self._dispatched)

    @property
    def control_blocks(self) -> list[Command]:
        """Commands of the card: DMA and compute."""
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
    if isinstance(work, JobWork):
        return work.plan.steps[stage].describe(work, iteration)
    if isinstance(work.payload, RecordedBlock):
        return work.payload.block
    return ControlBlock("host", "callback")


def _detail(work: Work, stage: int) -> Any:
    if isinstance(work.payload, RecordedBlock):
        return work.payload
    is_compute = work.stages.engines[stage] is Engine.COMPUTE
    return work.result if is_compute and isinstance(work, JobWork) else None


def _error_name(error: BaseException | None) -> str:
    if error is None:
        return ""
    return error.code if isinstance(error, SpyreError) else type(error).__name__


def _dependencies(work: Work, stage: int, iteration: int) -> tuple[str, ...]:
    """Labels of the commands that one iteration of a stage waits for."""
    labels: list[Label] = []
    stages = work.stages.all
    if stage > 0:
        labels.append(work.label(stage - 1, iteration))
    # Preparation fills one buffer per iteration, so it waits only for the step before it.
    if not stages[stage].is_prep and iteration > 0:
        labels.append(work.label(stage, iteration - 1))
    elif not stages[stage].is_prep and (stage == 0 or stages[stage - 1].is_prep):
        labels += work.after
    return tuple(label_text(label) for label in labels)


def launch_of(command: Command) -> ExecutedLaunch | None:
    """The launch of a compute command; None for other commands, and for tiles that only copied.

    The detail of a tiled launch is that of its last tile that ran the kernel.
    """
    detail = command.detail
    if isinstance(detail, ExecutedLaunch) and detail.begin_ns >= command.begin_ns:
        return detail
    return None


def recorded_block_of(command: Command) -> RecordedBlock | None:
    """The block of a command that ran outside the scheduler; None for other commands."""
    return command.detail if isinstance(command.detail, RecordedBlock) else None
