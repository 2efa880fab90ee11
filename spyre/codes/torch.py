"""Causes and fixes of SPY900-999: the PyTorch device."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

TORCH_EXPLANATIONS: dict[str, E] = {
    "SPY900": E(
        "SPYRE_FALLBACK=error forbids operations to run on the CPU behind the device's back.",
        "Move the tensors to the CPU for this operation, or use SPYRE_FALLBACK=warn.",
    ),
    "SPY901": E(
        "The card holds int64 tensors as int32, and a value beyond its range was copied to it.",
        "Keep such numbers on the CPU, or split them.",
    ),
    "SPY902": E(
        "SENCORES, the number of cores an operation may use, is not a number from 1 to 32.",
        "Set it to such a number, or unset it for all 32 cores.",
    ),
    "SPY903": E(
        "Device layouts belong to tensors on the card; this one is, or would be, elsewhere.",
        "Move the tensor first, or leave `device_layout` away.",
    ),
    "SPY930": E(
        "Operands lie on the card in ways that one program cannot express: more dims than an SDSC "
        "names, or sticks that do not go together, even after laying them out anew.",
        "Make the operands contiguous, or run the operation on the CPU.",
    ),
    "SPY950": E(
        "`torch.spyre.trace` was entered within another one, or while another thread has one.",
        "Leave the other block first; one trace shows all cards and streams.",
    ),
    "SPY951": E(
        "SPYRE_KEEP names a place where no directory can be made or written.",
        "Set it to a directory that may be written, or unset it.",
    ),
    "SPY960": E(
        "Coordinates of a tensor in an OpSpec are no sums of symbols, reach beyond their buffer, "
        "or do not have one symbol along the lanes from the start of a stick.",
        "Give the operation contiguous operands, split the dim beforehand, or have the operation "
        "run on the CPU; a tile names the device size of its buffer in `within`.",
    ),
    "SPY961": E(
        "Cores of an iteration space cut sticks or reduced dims, are too many, or share a tensor "
        "in LX in another way than the operation that wrote it.",
        "Divide other dims, or fewer; keep tensors that are shared in different ways in HBM.",
    ),
    "SPY962": E(
        "A kernel holds an UnimplementedOp: an operation the cores do not have.",
        "Leave the operation out of the compiled region; on its own it runs on the CPU.",
    ),
    "SPY963": E(
        "A tensor has another device layout than the one the kernel's specs were made for, and a "
        "copy in default layout has too, or cannot stand in for it.",
        "Pass tensors in the layout they had when the function was compiled.",
    ),
    "SPY964": E(
        "Extents and loop counts of a bundle are written as numbers, and this one depends on a "
        "size that only a launch knows.",
        "Compile once per size (`dynamic=False`).",
    ),
}
