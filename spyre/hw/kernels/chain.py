"""The kernel of a chain: all its members on one strip of units, then on the next.

Its "table" is the host address of words the driver fills: the number of members, the units of a
strip, then entry, table and base addresses of each member. See :mod:`.chaining`.
"""

from __future__ import annotations

from numba import carray

from spyre.hw.jit import entry, kernel
from spyre.hw.kernels.intrinsics import call_entry, pointer_i64
from spyre.hw.table.plan import CHAIN_WORDS


@kernel
def chain(words, memory, scratch, first, last):
    """Run units ``first`` .. ``last`` of every member; a fault word, or 0."""
    members, strip = words[0], words[1]
    for start in range(first, last, strip):
        end = min(start + strip, last)
        for member in range(members):
            at = 2 + 3 * member
            status = call_entry(
                words[at], words[at + 1], words[at + 2], memory, scratch, start, end
            )
            if status != 0:
                return status
    return 0


@entry
def run(table, bases, memory, scratch, first, last):
    """C entry of :func:`chain`."""
    return chain(carray(pointer_i64(table), CHAIN_WORDS), memory, scratch, first, last)
