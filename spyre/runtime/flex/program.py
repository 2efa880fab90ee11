"""`Program` and `Instruction`: the interface of the Program RFC over the one launch path.

An instruction is a job plan: a compute step with the correction it needs. `launch` is strict about
shapes, `launch_tiled` walks larger tensors. Both return at once, which is where the newer pipeline
RFC decided otherwise than this one (runtime reference §8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spyre.errors import LaunchError
from spyre.runtime.flex.flex_stream import FlexStream
from spyre.runtime.flex.job import ExecutionPlan, JobPlan
from spyre.runtime.flex.spyre_tensor import SpyreTensor
from spyre.runtime.tiling.options import TilingOptions


@dataclass(frozen=True, eq=False)
class Instruction:
    """One unit of work on the card, its preparation included."""

    plan: JobPlan


class Program:
    """An ordered collection of instructions. Change it from one thread at a time."""

    def __init__(self, execution_plan: ExecutionPlan | None = None) -> None:
        jobs = execution_plan.jobs if execution_plan is not None else []
        self.instructions = [Instruction(job.job_plan) for job in jobs]

    def add_instruction(self, instruction: Instruction) -> None:
        """Append an instruction."""
        self.instructions.append(instruction)

    def remove_instruction(self, instruction: Instruction) -> None:
        """Take an instruction out. LaunchError SPY882 if it is not in the program."""
        if instruction not in self.instructions:
            raise LaunchError(
                "SPY882", "the instruction is not in this program", found=repr(instruction.plan)
            )
        self.instructions.remove(instruction)

    def launch(self, tensors: Sequence[SpyreTensor], stream: FlexStream) -> None:
        """Enqueue all instructions over tensors of exactly the compiled shapes."""
        for instruction in self.instructions:
            stream.launch(instruction.plan, tensors, TilingOptions(allow_tiled_launch=False))

    def launch_tiled(self, tensors: Sequence[SpyreTensor], stream: FlexStream) -> None:
        """Enqueue all instructions, tile by tile where tensors are larger than compiled for."""
        for instruction in self.instructions:
            stream.launch(instruction.plan, tensors, TilingOptions(allow_tiled_launch=True))
