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
        "`torch.spyre.trace`, `torch.spyre.profile` or `torch.spyre.counting` was entered within "
        "another one of them, or while another thread has one.",
        "Leave the other block first; one shows all cards and streams.",
    ),
    "SPY951": E(
        "SPYRE_KEEP or SPYRE_DUMP_PASSES names a place where no directory can be made or written.",
        "Set it to a directory that may be written, or unset it.",
    ),
    "SPY980": E(
        "A core reaches 256 MiB from the first to the last byte of its slice of a tensor. The dims "
        "of this operation cannot be divided so that every slice fits, or a hint divides others.",
        "Tile the operation, make the tensor smaller, or hint a division of its outermost dims.",
    ),
    "SPY981": E(
        "Cores add up partial results along one dim. Here slices fit, or hints ask for, only "
        "divisions of several reduced dims.",
        "Reduce one dim after the other, tile the operation, or hint one of the dims only.",
    ),
    "SPY982": E(
        "A hint, an earlier pass or a caller names a dim the operation does not have, a number "
        "that does not divide it (in sticks, along sticks), too many cores, or a planner that does "
        "not exist.",
        "Take one of the values the error lists.",
    ),
    "SPY983": E(
        "Work is divided for numbers: the extents of an operation, and coordinates made of sums, "
        "products, floored quotients and remainders of its symbols.",
        "Compile for fixed sizes, or copy the view to a tensor of its own.",
    ),
    "SPY984": E(
        "An operation needs its inputs in layouts that no chain of restickifies leads to: a tensor "
        "with one element per stick cannot become one with full sticks, nor the reverse.",
        "Make the tensor contiguous before the operation, or run the operation on the CPU.",
    ),
    "SPY985": E(
        "DXP_LX_FRAC_AVAIL is no fraction, or LX planning has no solver or rule of this name.",
        "Use a fraction from 0 to 1, and names the message lists.",
    ),
    "SPY986": E(
        "The optimal plan is found by trying all orders, which takes too long for so many buffers.",
        "Use the solver greedy, first_fit or best_fit, or tile the kernel into smaller groups.",
    ),
    "SPY987": E(
        "The intermediate results of a compiled kernel that live at the same time do not fit the "
        "16 GiB segment that holds them.",
        "Use smaller batches, or tile the kernel so that less of it lives at a time.",
    ),
    "SPY988": E(
        "Memory planning was given a list of specs, and names for other operations or arguments.",
        "Give one tuple of names per operation, one name per argument, loops entered once.",
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
        "Extents of an SDSC are written as numbers; loop counts and pitches may depend on sizes of "
        "the launch, if the kernel names them. This one depends on something else.",
        "Name the size in `sizes` of the kernel, or compile once per size (`dynamic=False`).",
    ),
    "SPY965": E(
        "The tensors of a launch disagree on a size, it is out of the range the kernel was "
        "compiled for, or no tensor has it and nobody says it.",
        "Pass tensors of one size, a multiple of the granularity the message names.",
    ),
    "SPY966": E(
        "A kernel whose sizes are known at launch only keeps its loops and takes addresses as "
        "arguments; UNROLL_LOOPS or BUNDLE_SYMBOLIC_ARGS asks for something else.",
        "Compile with loops and symbolic addresses, or once per size.",
    ),
    "SPY967": E(
        "A bundle of baked addresses has a segment per tensor or number, and one for its pool: "
        "seven together. One operation, or a loop, which is not cut, needs more.",
        "Leave `bundle_symbolic_args` (BUNDLE_SYMBOLIC_ARGS) on.",
    ),
    "SPY968": E(
        "An option of torch.compile, a value of `spyre.torch_backend.inductor.config`, or an "
        "environment variable of compiled functions is none of those the message lists.",
        "Use one of them; None in the config means what the environment says.",
    ),
    "SPY969": E(
        "spyre.explain was given a function of which nothing was compiled for the card: it has no "
        "tensors on spyre, or nothing in it is an operation on them.",
        "Call it with arguments on spyre, as the function would be called.",
    ),
}
