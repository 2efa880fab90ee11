"""Plans and linked programs as text, for people and golden tests.

Nothing here is read back: the tables are the truth, this shows them.
"""

from __future__ import annotations

from collections.abc import Iterator

from spyre.hw import plan_table as tb
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.hw.plans.core_plan import CorePlan
from spyre.layout.access_map import Int64Array

_FORMATS = {
    tb.DL16: "dl16", tb.HALF: "half", tb.FP32: "fp32", tb.INT32: "int32",
    tb.DL16_TRUNC: "dl16 trunc", tb.DL16_EVEN: "dl16 even",
}  # fmt: skip
_VECTORS = {
    tb.PACKED_MATMUL_KIND: ("batch", "rows", "columns", "k"),
    tb.REQUANTIZE_KIND: ("outer", "middle", "inner"),
    tb.WINDOWING_KIND: ("kept sticks", "window"),
}


def format_plan(plan: CorePlan) -> str:
    """The plan of one SDSC: operands, then every table row with its axes (pitches in bytes)."""
    lines = [f"{plan.op.name}: {len(plan.op.cores)} cores, {len(plan.tables)} table rows"]
    for k, access in enumerate(plan.accesses):
        low, high = int(plan.low_bytes[k]), int(plan.high_bytes[k])
        pitches = ", ".join(f"{d} {p}" for d, p in access.pitch_bytes.items())
        sticks = ", ".join(f"{d} of {n}" for d, n in access.sticks.items())
        lines.append(
            f"  {access.tensor.name}: {access.tensor.component.value}, stick {sticks}, "
            f"pitches {pitches}, touches {low}..{high}"
        )
    for row in plan.tables[plan.tables[:, tb.KIND] != tb.EXTRA]:
        lines.extend(_format_row(row))
    return "\n".join(lines)


def format_linked(linked: LinkedProgram) -> str:
    """Every dispatch in program order: execute, instance, table, operand addresses."""
    lines = [f"{len(linked.dispatch)} dispatches, {len(linked.tables)} tables"]
    for row in linked.dispatch:
        table, static, instance = (int(v) for v in row[:3])
        count = len(linked.plans[static][0].op.tensors)
        addresses = ", ".join(f"{a:#x}" for a in row[tb.DISPATCH_BASES : tb.DISPATCH_BASES + count])
        name = linked.plans[static][0].op.name
        lines.append(f"  execute {static} ({name}) instance {instance} table {table}: {addresses}")
    return "\n".join(lines)


def _format_row(row: Int64Array) -> Iterator[str]:
    kind = int(row[tb.KIND])
    yield f"  {tb.KERNEL_NAMES[kind]}: opcode {row[tb.OPCODE]}, flags {row[tb.FLAGS]}, " + (
        f"{row[tb.UNITS]} units"
    )
    maskable = kind <= tb.REDUCTION_KIND or kind == tb.CHUNK_REDUCTION_KIND
    if row[tb.MASK] != tb.NO_MASK and maskable:
        yield f"    masked from {row[tb.MASK_START]} to {row[tb.MASK_END]}"
    if kind in (tb.MATMUL_KIND, tb.CHUNK_MATMUL_KIND):
        yield from _matmul_axes(row)
        return
    if kind in _VECTORS:
        yield from _vector_lengths(row, _VECTORS[kind])
        return
    for k in range(int(row[tb.OPERANDS])):
        yield f"    operand {k}: {_format_operand(row, k)}"
    yield from _axes(row)


def _format_operand(row: Int64Array, slot: int) -> str:
    words = row[tb.OPERAND + slot * tb.OPERAND_WORDS :]
    if words[tb.TENSOR] < 0:
        return f"coordinate from {words[tb.BASE]}"
    lane = "" if words[tb.LANE] == tb.WHOLE_STICK else f", lane {words[tb.LANE]} of each stick"
    return (
        f"tensor {words[tb.TENSOR]} + {words[tb.BASE]}, "
        f"{_FORMATS.get(int(words[tb.FORMAT]), 'bits')}{lane}"
    )


def _axes(row: Int64Array) -> Iterator[str]:
    operands = range(int(row[tb.OPERANDS]))
    places = [tb.OPERAND + k * tb.OPERAND_WORDS for k in operands]
    for axis in range(int(row[tb.RANK])):
        pitches = [int(row[at + tb.PITCH + axis]) for at in places]
        yield f"    axis of {row[tb.EXTENT + axis]}: {pitches}"
    inner = [int(row[at + tb.INNER_PITCH]) for at in places]
    yield f"    inner axis of {row[tb.INNER]}: {inner}"


def _vector_lengths(row: Int64Array, groups: tuple[str, ...]) -> Iterator[str]:
    counts = row[tb.COUNTS : tb.COUNTS + len(groups)].tolist()
    vectors = ", ".join(f"{name} of {n}" for name, n in zip(groups, counts, strict=True))
    yield f"    offset vectors: {vectors}"


def _matmul_axes(row: Int64Array) -> Iterator[str]:
    groups = (
        ("batch", tb.MATMUL_BATCH, tb.MATMUL_BATCH_AXES, "A B C"),
        ("rows", tb.MATMUL_ROWS, tb.MATMUL_AXES, "A C"),
        ("column sticks", tb.MATMUL_COLUMNS, tb.MATMUL_AXES, "B C"),
        ("K sticks", tb.MATMUL_REDUCED, tb.MATMUL_AXES, "A B"),
    )
    for name, first, count, operands in groups:
        width = 1 + len(operands.split())
        for axis in range(count):
            words = row[first + axis * width : first + (axis + 1) * width].tolist()
            if words[0] > 1:
                yield f"    {name} of {words[0]}: {operands} {words[1:]}"
    yield f"    B row pitch {row[tb.B_ROW_PITCH]}, blocks of {row[tb.ROW_BLOCK]} rows"
