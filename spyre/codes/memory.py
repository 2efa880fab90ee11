"""Causes and fixes of SPY800-809: device memory of the runtime."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

MEMORY_EXPLANATIONS: dict[str, E] = {
    "SPY800": E(
        "The handle has been given back as often as it was referenced, or the device was reset "
        "since, or no allocator of this device made it.",
        "Keep the storage that owns the handle for as long as the handle is used.",
    ),
    "SPY801": E(
        "An allocation of 0 bytes has a handle but lies nowhere.",
        "Leave empty tensors out of launches and copies.",
    ),
    "SPY802": E(
        "Bind takes one domain at most, Interleave two or more, each once. Tensors go to regions 0 "
        "to 6, programs to region 7.",
        "Name other domains, or none with Bind.",
    ),
    "SPY803": E(
        "FLEX_DEVICE selects how device memory is divided: PF, VF or MOCK.",
        "Unset FLEX_DEVICE, or set it to one of the three, in capitals.",
    ),
    "SPY804": E(
        "FLEX_MOCK_DEVICE_MEMORY_SIZE is all memory of a mock card in bytes; each of its eight "
        "regions needs a stick and has 16 GiB at most.",
        "Write it as a plain decimal number of bytes.",
    ),
    "SPY805": E(
        "AIU_WORLD_SIZE is the number of cards, and an ensemble has eight at most.",
        "Set it to a number from 1 to 8, or unset it for one card.",
    ),
    "SPY806": E(
        "SPYRE_DEVICES lists card numbers; each may come once and must be below the number of "
        "cards, which is 1 unless AIU_WORLD_SIZE says otherwise.",
        "Correct the list, raise AIU_WORLD_SIZE, or unset SPYRE_DEVICES for all cards.",
    ),
    "SPY807": E(
        "A negative size, capacities that are not those of eight regions of up to 16 GiB, or a "
        "change of capacities while memory is allocated.",
        "Give sizes from 0 on, and set capacities before the first allocation.",
    ),
    "SPY808": E(
        "The allocation has chunks in several regions, and a launch binds one address per tensor.",
        "Allocate what a launch uses with the policy Bind.",
    ),
}
