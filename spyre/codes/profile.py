"""Causes and fixes of SPY78x: profiles, what shows them, comparing runs."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

PROFILE_EXPLANATIONS: dict[str, E] = {
    "SPY780": E(
        "--roofline draws with matplotlib, which the core does not install.",
        "Install the extra plot, or use --report, whose roofline needs nothing.",
    ),
    "SPY781": E(
        "--compare takes directories of bundles and cases, and files written by "
        "spyre-run --profile --json. The file is something else.",
        "Write the file anew with --profile --json.",
    ),
    "SPY782": E(
        "The file that a report or picture should go to cannot be written, or has a suffix "
        "matplotlib is not asked for.",
        "Name a file in a directory that exists and may be written.",
    ),
    "SPY783": E(
        "What `with torch.spyre.profile() as p` found was asked for inside the block, whose "
        "work has not ended.",
        "Read p behind the block.",
    ),
}
