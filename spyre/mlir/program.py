"""A lowered bundle: parameters, allocations and loops of executes; :mod:`.lowering` makes it.

The runtime asks the program for a :class:`~spyre.mlir.schedule.Schedule` per launch.
``str(program)`` is the golden form tests compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spyre.mlir.arguments import bind_arguments
from spyre.mlir.loops import Allocation, Body, Execute, Loop, Parameter, print_body
from spyre.mlir.schedule import Schedule, make_schedule

__all__ = ["Allocation", "Execute", "Loop", "LoopProgram", "Parameter", "Schedule"]


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """A bundle's function: parameters, allocations, and loops of executes.

    ``executes`` lists the static executes in textual order; ``executes[k].index == k``.
    """

    parameters: tuple[Parameter, ...]
    allocations: tuple[Allocation, ...]
    body: Body
    executes: tuple[Execute, ...]

    def schedule(
        self,
        parameter_values: Mapping[str, int],
        allocation_addresses: Sequence[int] = (),
        max_executes: int = 4_000_000,
    ) -> Schedule:
        """All dynamic executes with their symbol values, evaluated in bulk.

        Parameters go by name; addresses are in bytes, one per allocation. Raises LaunchError:
        SPY170-SPY174 (arguments), SPY150 (step), SPY125 (divisor), SPY157 (int64), SPY175
        (more than ``max_executes``), SPY176 (memory).
        """
        environment = bind_arguments(
            self.parameters, self.allocations, parameter_values, allocation_addresses
        )
        return make_schedule(self.body, len(self.executes), environment, max_executes)

    def __str__(self) -> str:
        lines = ["program"]
        lines.extend(f"  {parameter}" for parameter in self.parameters)
        lines.extend(f"  {allocation}" for allocation in self.allocations)
        lines.extend(print_body(self.body))
        return "\n".join(lines) + "\n"
