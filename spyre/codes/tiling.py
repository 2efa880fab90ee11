"""Causes and fixes of SPY850-869: tiled launches."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

TILING_EXPLANATIONS: dict[str, E] = {
    "SPY850": E(
        "The launch was told to insist on the shapes the kernel was compiled for.",
        "Give tensors of these shapes, allow_tiled_launch=True, or SPYRE_ALLOW_TILED_LAUNCH=1.",
    ),
    "SPY851": E(
        "A kernel runs over whole tiles, and the tensor does not fill one.",
        "Pad the tensor, or compile a kernel for its shape.",
    ),
    "SPY852": E(
        "The last tile of the dim would not be whole.",
        "Pad the tensor, or launch with remainder='pad'.",
    ),
    "SPY853": E(
        "The kernel walks dims of several tensors together, so they need one number of tiles.",
        "Give tensors whose shapes fit each other.",
    ),
    "SPY854": E(
        "Tensors are compared with the kernel's arguments one by one, dim by dim.",
        "Give one tensor per argument, of its rank.",
    ),
    "SPY855": E(
        "A tile must be a slice of the tensor's memory: same device dims in the same order, same "
        "stick dim, room for the tile in each.",
        "Give the tensor the kind of layout the kernel was compiled for, for example by a copy.",
    ),
    "SPY856": E(
        "The kernel's formats are compiled in.",
        "Convert the tensor, or compile the kernel for its dtype.",
    ),
    "SPY857": E(
        "Tiles of such a dim give partial results. They can be added up for kernels of one sum or "
        "batchmatmul, rounded once per tile, if the launch asks for it.",
        "Launch with reduction='accumulate', or compile a kernel for the whole dim.",
    ),
    "SPY858": E(
        "Tiles of the dim are not independent: the kernel masks it, slides windows over it, reads "
        "it shifted, or mixes it with another dim.",
        "Compile a kernel for the whole dim.",
    ),
    "SPY859": E(
        "The kernel works on whole sticks, so neighbouring tiles would overwrite each other.",
        "Compile the kernel for a tile of whole sticks.",
    ),
    "SPY860": E(
        "Nothing in the kernel says which other tensors the dim belongs to.",
        "Compile a kernel for the whole dim.",
    ),
    "SPY861": E(
        "Addresses in the kernel are computed in a way that pitches of a larger tensor cannot "
        "follow, such as one walk through several device dims.",
        "Compile a kernel for the whole tensor, or copy tiles out of it.",
    ),
    "SPY862": E(
        "A tile would overwrite what a later tile still reads.",
        "Give the output memory of its own.",
    ),
}
"""Causes and fixes of tiled launches."""
