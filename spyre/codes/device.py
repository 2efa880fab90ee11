"""Causes and fixes of SPY4xx: memory and faults on the device."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

DEVICE_EXPLANATIONS: dict[str, E] = {
    "SPY401": E(
        "No region of 16 GiB has room for the tensor or pool.",
        "Free tensors, or split the one that is too large.",
    ),
    "SPY402": E(
        "The simulator reserves the card's 128 GiB of addresses without using memory, and the host "
        "does not allow that.",
        "Raise ulimit -v, or set vm.overcommit_memory to 1.",
    ),
    "SPY403": E(
        "A buffer reaches from one memory region into the next; the card cannot address that.",
        "Place it within 16 GiB.",
    ),
    "SPY410": E(
        "The operand's bytes leave the 2 MiB of its core's scratchpad.",
        "Place it lower, or split it over more cores.",
    ),
    "SPY411": E(
        "An operand's bytes lie outside of all arguments, pool and allocations of the launch: a "
        "wrong stride, gap, bound or shape. On the card other data would be read or destroyed.",
        "Compare the address with the ranges listed; check the loop's bounds and the tensor's gap.",
    ),
    "SPY412": E(
        "An index read while the program ran points outside of the value tensor.",
        "Check the values of the index tensor; the message gives the range.",
    ),
    "SPY413": E(
        "A start address falls inside an element.", "Align it to the element's size, or a stick."
    ),
}
