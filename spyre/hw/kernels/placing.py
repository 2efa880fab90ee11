"""Dispatches of one linked program for other starts of its allocations, launch behind launch."""

from __future__ import annotations

from typing import Any

from spyre.hw.jit import kernel
from spyre.hw.kernels.opcodes import DISPATCH_BASES, DISPATCH_WORDS
from spyre.hw.spec import REGION_BITS, REGION_SKEW_BYTES


@kernel
def place_dispatches(dispatch: Any, anchors: Any, origin: Any, bases: Any, placed: Any) -> None:
    """Fill ``placed`` [launches · rows, DISPATCH_WORDS] with base addresses as host offsets.

    ``dispatch``: [row, DISPATCH_WORDS] as linked with allocations at ``origin`` [allocation];
    ``anchors``: the allocation each base moves with, [row, operand], negative for none; ``bases``:
    where the allocations of each launch begin, [launch, allocation]. Bytes.
    """
    at = 0
    for launch in range(bases.shape[0]):
        for row in range(dispatch.shape[0]):
            for word in range(DISPATCH_BASES):
                placed[at, word] = dispatch[row, word]
            for operand in range(DISPATCH_WORDS - DISPATCH_BASES):
                address = dispatch[row, DISPATCH_BASES + operand]
                anchor = anchors[row, operand]
                if anchor >= 0:
                    address += bases[launch, anchor] - origin[anchor]
                skew = (address >> REGION_BITS) * REGION_SKEW_BYTES
                placed[at, DISPATCH_BASES + operand] = address + skew
            at += 1
