"""Which index stopped a program: its core and logical coordinate, from the address of its word.

The kernels report the address of the index they refuse; what it means is worked out here, once,
after the fact. The address rule is that of SDSC reference §5.2.
"""

from __future__ import annotations

from spyre.errors import DeviceFault, DeviceLocation
from spyre.hw import table as tb
from spyre.hw.access import per_core
from spyre.hw.linked_program import LinkedProgram
from spyre.hw.memory import DeviceMemory
from spyre.hw.plan_run import PlanRun

_WORD_BYTES = 4


def index_fault(
    linked: LinkedProgram, dispatch: int, address: int, memory: DeviceMemory
) -> DeviceFault:
    """The fault of a dispatch whose index at device ``address`` is out of range."""
    table, static, instance = (int(v) for v in linked.dispatch[dispatch, :3])
    execute = linked.program.executes[static]
    runs = [run for run in linked.runs[static] if instance in run.instances]
    found = filter(None, (find_index(run, instance, address) for run in runs))
    core, coordinate = next(found, (None, {}))
    op = runs[0].plan.op
    index = int(memory.read(address, _WORD_BYTES).view("<i4")[0])
    loops = linked.schedule.loop_indices[static][instance]
    place = ", ".join(f"{dim} {n}" for dim, n in coordinate.items()) or "an unknown coordinate"
    return DeviceFault(
        "SPY412",
        f"{op.name}: index out of range at {place}",
        DeviceLocation(
            op.file,
            static,
            core,
            op.index_tensors[0].name,
            address,
            tuple(int(i) for i in loops),
            execute.location,
        ),
        expected=f"0 to {int(linked.tables[table, tb.MASK_END]) - 1}",
        found=str(index),
    )


def find_index(run: PlanRun, instance: int, address: int) -> tuple[int, dict[str, int]] | None:
    """(core, coordinate in the whole index tensor) of the word at ``address``.

    The first core that reads it; None if no core of the run does.
    """
    op, operand = run.plan.op, len(run.plan.op.inputs)
    row = run.instances.tolist().index(instance)
    for position, start in enumerate(run.starts(operand)[row].tolist()):
        local = _local_coordinate(run, operand, address - start)
        if local is not None:
            slices = op.core_slices[position]
            shares = {dim: slices.get(dim, 0) * per_core(op, dim) for dim in local}
            return op.cores[position], {dim: n + shares[dim] for dim, n in local.items()}
    return None


def _local_coordinate(run: PlanRun, operand: int, offset: int) -> dict[str, int] | None:
    """Coordinate within a core's box of the word ``offset`` bytes from its start.

    Pitches nest, so the offset is taken apart from the largest pitch down.
    """
    op, access = run.plan.op, run.plan.accesses[operand]
    local: dict[str, int] = {}
    rest = offset
    held = [dim for dim in access.tensor.dims if access.tensor.holds(dim)]
    for dim in sorted(held, key=lambda d: -access.pitch_bytes[d]):
        size = access.lanes if dim == access.stick_dim else 1
        steps = -(-per_core(op, dim) // size)
        step = min(rest // access.pitch_bytes[dim], steps - 1)
        rest -= step * access.pitch_bytes[dim]
        local[dim] = step * size
    if access.stick_dim in local:
        local[access.stick_dim] += rest // _WORD_BYTES
        rest = 0 if local[access.stick_dim] < per_core(op, access.stick_dim) else -1
    inside = 0 <= rest < access.lanes * _WORD_BYTES and offset >= 0
    return {dim: local[dim] for dim in op.dims if dim in local} if inside else None
