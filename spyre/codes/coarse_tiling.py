"""Causes and fixes of SPY970-978: coarse tiling in compiled functions."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

COARSE_TILING_EXPLANATIONS: dict[str, E] = {
    "SPY970": E(
        "A group given to coarse_tile has another form than (ops, K), (ops, K, dims) or "
        "(ops, [(K1, dims), …]), names a dim an operation does not have, or shares operations "
        "with another group.",
        "Correct the group; dims are places in the ranges of its operations.",
    ),
    "SPY971": E(
        "Operations that share a loop must follow each other, and others lie between them: the "
        "group leaves some out, or one of them depends on an operation outside that depends on "
        "the group.",
        "Add what lies between to the group, or make two groups.",
    ),
    "SPY972": E(
        "Operations with the same loop_group_id carry different loop_count entries.",
        "Stamp all operations of a group with the same counts, as coarse_tile does.",
    ),
    "SPY973": E(
        "The number of tiles does not divide the extent of the dim, or tiles would end within a "
        "stick.",
        "Choose a number of tiles that divides the extent; along sticks, with tiles of whole "
        "sticks.",
    ),
    "SPY974": E(
        "A dim name was used that is not declared, or for a dim of another extent than declared, "
        "or a tensor was given another number of names than it has dims.",
        "Declare the name with `declare_tensor_dim`, and give one name, or None, per dim.",
    ),
    "SPY975": E(
        "`spyre_hint` takes mappings of dim names to positive ints as `slices` (or "
        "`num_tiles_per_dim`, the same by another name) and `work_div`.",
        'Write `spyre_hint(slices={"A": 2})`.',
    ),
    "SPY976": E(
        "The operation walks no iteration space of its own (an operation of the host, or one that "
        "is made of others as its operands lie: cat, index, topk, cumsum …), reduces the tiled "
        "dim in a way whose partial results nothing joins, has sizes known only at run time, or "
        "its layout does not show where the tiled dim lies on the card.",
        "Leave the block of the hint before this operation, or tile another dim.",
    ),
    "SPY977": E(
        "Iterations of a tiling loop run the same operations on other tiles. This one reads what "
        "the loop makes beyond the tile of its iteration, at uneven steps, or depends on where "
        "its tile lies.",
        "Leave the block of the hint before this operation, or tile another dim.",
    ),
    "SPY978": E(
        "coarse_tiling_groups_fn is a lambda, a nested function or a callable object, which "
        "compile caches cannot name.",
        "Define it with `def` at the top of a module.",
    ),
}
