"""Causes and fixes of SPY7xx: what the sanitizer finds."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

SANITIZE_EXPLANATIONS: dict[str, E] = {
    "SPY701": E(
        "An operand's address is built from one argument, but the cores touch bytes beyond it: "
        "into the gap behind it, or into the memory of another tensor.",
        "Check the offsets and loop strides of the address, and the extents and gaps that make "
        "the pitches; the coordinate named is the first outside.",
    ),
    "SPY702": E(
        "An operand walks its argument with distances that the argument's layout does not have: a "
        "tile whose allocation says it is dense, though the tensor around it is larger.",
        "Write the difference to the tensor's true extents as backGapCore_.",
    ),
    "SPY703": E(
        "An intermediate tensor begins in the pool and ends behind it.",
        "Make the pool as large as the plan of intermediates needs, or move the tensor.",
    ),
    "SPY710": E(
        "An execute reads sticks that no transfer and no execute has written. On a card they hold "
        "whatever was there; --poison shows what that does to the result.",
        "Write the memory first, or read only the part that was written.",
    ),
    "SPY711": E(
        "Two cores that do not combine a split reduction write the same stick in one execute. "
        "Which of them is last is not defined.",
        "Divide the output so that no stick is in two shares; --core-order random shows the "
        "effect.",
    ),
    "SPY712": E(
        "One core reads sticks that another core writes in the same execute, as in an operation in "
        "place that moves data. Whether it sees the old or the new content is not defined.",
        "Write to other memory, or give each core the same share of input and output.",
    ),
    "SPY720": E(
        "After the run, sticks that hold elements of an output have not been written by any "
        "execute.",
        "Check loop strides, loop counts and extents: the tiles do not cover the tensor.",
    ),
    "SPY730": E(
        "The compiler's planner leaves the last fifth of each scratchpad to the backend; a tensor "
        "there may be overwritten on a card.",
        "Plan within the first 1,677,721 bytes, or make the tile smaller.",
    ),
    "SPY731": E(
        "An execute reads an LX tensor, part of which another tensor at overlapping addresses has "
        "replaced since it was written.",
        "Give tensors that are alive at the same time addresses that do not overlap.",
    ),
    "SPY732": E(
        "LX addresses do not change with the loop, so after it only the last iteration's tensor is "
        "left; it is read as if it were all of them.",
        "Read it inside of the loop, or keep the iterations' results in the pool.",
    ),
    "SPY735": E(
        "While running, an operand starts inside a stick of 128 bytes.",
        "Advance addresses by whole sticks; strides of a loop are bytes in the device layout.",
    ),
    "SPY736": E(
        "From its start to the last byte it touches of one tensor, a core spans more than a "
        "core of the card can address at once.",
        "Divide the tensor's outermost dims over more cores, or over a loop.",
    ),
    "SPY737": E(
        "A core's share of a tensor falls apart into nested runs of more dims than the checks "
        "walk.",
        "Run it without the sanitizer, or lay the tensor out so that dims are neighbours.",
    ),
    "SPY738": E(
        "The sanitizer numbers uploads and executions since the last reset, and has run out.",
        "Call Device.reset() between runs.",
    ),
    "SPY739": E(
        "A check or an order of cores that does not exist was asked for.",
        "Choose among memory, init, race, cover, lx and align; the order is random or random:SEED.",
    ),
}
