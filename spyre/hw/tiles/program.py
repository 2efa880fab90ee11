"""A traced KTIR function as a program that can be linked: statements, and their instances in order.

Each statement is an operation with the start addresses of its operands per tile; the linker's other
inputs follow from them. Statements whose instances run on different sets of tiles are several
executes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.errors import Finding, SourceLocation
from spyre.hw.spec import LX_BASE
from spyre.layout import Int64Array
from spyre.mlir.operation import Operation
from spyre.mlir.program import DeviceAllocation, Execute, IndexValue, InputAtom, Parameter, Schedule


class TileStatement(msgspec.Struct, frozen=True, eq=False):
    """One statement on one set of tiles.

    ``offsets``: bytes from the start of an argument, [instance, symbol]; ``owners``: the argument
    of each symbol, -1 in scratchpads. ``key``: places of the instances in program order,
    [instance, column]. ``indices``: induction variables of the loops around it, [instance, depth].
    """

    operation: Operation
    location: SourceLocation | None
    offsets: Int64Array
    owners: tuple[int, ...]
    key: Int64Array
    indices: Int64Array


class TracedProgram(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A function traced for one set of launch values; a `LinkableProgram` of its statements.

    ``n_arguments``: how many addresses it takes. ``reserved_bytes``: of further device memory,
    whose owner is the number after those of the arguments.
    """

    statements: tuple[TileStatement, ...]
    n_arguments: int
    reserved_bytes: int = 0

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """An address per argument."""
        return tuple(Parameter(f"arg_{k}_base_addr", "input_arg") for k in range(self.n_arguments))

    @property
    def allocations(self) -> tuple[DeviceAllocation, ...]:
        """The memory of deliveries, if there are any."""
        return (DeviceAllocation(0, self.reserved_bytes),) if self.reserved_bytes else ()

    @property
    def control_values(self) -> tuple[IndexValue, ...]:
        """Nothing: bounds are known when the function is traced."""
        return ()

    @cached_property
    def loop_paths(self) -> tuple[tuple[int, ...], ...]:
        """Per execute the columns of its key that are places of loops."""
        return tuple(
            tuple(s.key[0, 0 : 2 * s.indices.shape[1] : 2].tolist()) for s in self.statements
        )

    @cached_property
    def executes(self) -> tuple[Execute, ...]:
        """An execute per statement; its symbols name the argument that each moves with."""
        atoms = [InputAtom("parameter", k, p.name) for k, p in enumerate(self.parameters)]
        atoms.append(InputAtom("allocation", 0, "allocation0"))
        starts = [*(IndexValue(0, ((atom, 1),)) for atom in atoms), IndexValue(LX_BASE)]
        return tuple(
            Execute(
                k, s.operation.sdsc_name, tuple(-1 - n for n in range(len(s.owners))),
                tuple(starts[owner] for owner in s.owners), location=s.location,
            )
            for k, s in enumerate(self.statements)
        )  # fmt: skip

    @cached_property
    def _order(self) -> tuple[npt.NDArray[np.int32], Int64Array]:
        """TileStatement and instance of every execution, in program order."""
        width = max((s.key.shape[1] for s in self.statements), default=1)
        keys = [np.pad(s.key, ((0, 0), (0, width - s.key.shape[1]))) for s in self.statements]
        counts = [len(s.key) for s in self.statements]
        columns = np.concatenate(keys) if keys else np.zeros((0, width), np.int64)
        order = np.lexsort(columns.T[::-1])
        statements = np.repeat(np.arange(len(counts)), counts)
        instances = np.concatenate([np.arange(n) for n in counts] or [np.zeros(0, np.int64)])
        return statements[order].astype(np.int32), instances[order].astype(np.int64)

    def schedule(
        self, parameter_values: Mapping[str, int], allocation_addresses: Sequence[int] = ()
    ) -> Schedule:
        """All instances in order, with the addresses of this launch."""
        given = [parameter_values[p.name] for p in self.parameters]
        starts = np.array([*given, *allocation_addresses, LX_BASE], np.int64)
        symbols = tuple(s.offsets + starts[list(s.owners)] for s in self.statements)
        return Schedule(*self._order, symbols, tuple(s.indices for s in self.statements))

    def __str__(self) -> str:
        rows = [(s.operation.sdsc_name, s.operation.name, len(s.key)) for s in self.statements]
        lines = [f"  {title}: {name} × {count}\n" for title, name, count in rows]
        return f"tiles of {self.n_arguments} arguments\n{''.join(lines)}"


class TracedKernel(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A program to launch: a traced function with the numbers that it reads from memory.

    ``constants``: content of the last argument, in bytes. ``findings``: notes of the trace.
    """

    file: Path
    program: TracedProgram
    constants: npt.NDArray[np.uint8]
    findings: tuple[Finding, ...] = ()

    @property
    def directory(self) -> Path:
        """The file, for messages."""
        return self.file

    @cached_property
    def operations(self) -> Mapping[str, Operation]:
        """The operations by the names of their executes."""
        return {s.operation.sdsc_name: s.operation for s in self.program.statements}

    def check(self, raise_on_error: bool = False) -> tuple[Finding, ...]:
        """Notes of the trace; errors have ended it."""
        return self.findings
