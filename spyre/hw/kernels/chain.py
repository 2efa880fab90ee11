"""The kernel of a chain: all its members on one strip of units, then on the next.

Its "table" is the host address of words the driver fills: the number of members, then entry, table
and base addresses of each. See :mod:`.chaining`.
"""

from __future__ import annotations

from numba import carray

from spyre.hw.jit import entry, kernel
from spyre.hw.kernels.intrinsics import call_entry, pointer_i64
from spyre.hw.kernels.opcodes import CHAIN_WORDS, STRIP_UNITS


@kernel
def chain(words, memory, scratch, first, last):
    """Run units ``first`` .. ``last`` of every member; a fault word, or 0."""
    for start in range(first, last, STRIP_UNITS):
        end = min(start + STRIP_UNITS, last)
        for member in range(words[0]):
            at = 1 + 3 * member
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
