"""The views of a C entry's arguments, by the names of a kernel's parameters.

Every kernel is called through one C signature, ``(table, bases, memory, scratch, first, last)``:
four host addresses and the units to run. `entry_source` is the text of a function of this signature
that calls a kernel with arrays over these addresses; `.jit` compiles it, and the interpreter runs
it with its own ``carray``.
"""

from __future__ import annotations

from collections.abc import Sequence

from spyre.hw.spec import HOST_BYTES
from spyre.hw.table import plan as tb

TABLE_WORDS = 1 << 40
"""Extent of the view of a table, whose vectors may follow its row."""
_FLOATS_AT = 8 * tb.SCRATCH_COUNTERS

VIEWS = {
    "table": f"carray(pointer_i64(table), {TABLE_WORDS})",
    "bases": "carray(pointer_i64(bases), 8)",
    "constants": f"carray(pointer_f32(table + {8 * tb.CONSTANT}), {2 * tb.MAX_CONSTANTS})",
    "half": f"carray(pointer_u16(memory), {HOST_BYTES // 2})",
    "word": f"carray(pointer_f32(memory), {HOST_BYTES // 4})",
    "integers": f"carray(pointer_i32(memory), {HOST_BYTES // 4})",
    "octet": f"carray(pointer_u8(memory), {HOST_BYTES})",
    "counters": f"carray(pointer_i64(scratch), {tb.SCRATCH_COUNTERS})",
    "scratch": f"carray(pointer_f32(scratch + {_FLOATS_AT}), {tb.SCRATCH_FLOATS})",
    "memory": "memory",
    "scratch_address": "scratch",
    "host": "bases",
    "device": "memory",
}
"""View by parameter name: words of the table and of the base addresses, float32 constants; the
reservation as uint16, float32, int32 and bytes; loop counters and float32 buffers of the thread;
and plain addresses. Copies have the host tensor in place of base addresses."""


def entry_source(name: str, parameters: Sequence[str], reports_faults: bool) -> str:
    """Source of the C entry ``name`` of the function ``kernel`` with these parameters.

    The last two parameters are the first and the last unit. The entry returns the fault word of the
    kernel if it ``reports_faults``, else 0.
    """
    views = ", ".join(VIEWS[parameter] for parameter in parameters[:-2])
    call = f"kernel({views}, first, last)"
    body = f"    return {call}\n" if reports_faults else f"    {call}\n    return 0\n"
    return f"def {name}(table, bases, memory, scratch, first, last):\n{body}"
