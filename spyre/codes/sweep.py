"""Causes and fixes of SPY74x: design-space runs (``python -m spyre.sweep``)."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

SWEEP_EXPLANATIONS: dict[str, E] = {
    "SPY740": E(
        "The TOML file of a sweep cannot be read, or it or an option has a key or value that is "
        "none.",
        "Use the keys and forms of docs/sweep.md; names of constants are those of spyre.toml.",
    ),
    "SPY741": E(
        "The journal beside the result was written by a sweep with other subjects, axes, file "
        "contents or version.",
        "Give another --out, or --anew to throw the journal away.",
    ),
    "SPY742": E(
        "Another process writes the journal beside the result, or the file there is no journal.",
        "Wait for the other sweep, or give another --out.",
    ),
    "SPY743": E(
        "An option needs a package that comes with an extra: Dask, pyarrow or matplotlib.",
        "Install the extra the hint names.",
    ),
    "SPY744": E(
        "A directory has no bundle.mlir, or a function, its module or its example sizes are not "
        "as they should be.",
        "Functions are MODULE:FUNCTION SIZES ..., files relative to the TOML file.",
    ),
    "SPY745": E(
        "Nothing answers at the address given with --scheduler.",
        "Start `dask scheduler` and workers, and give the address the scheduler prints.",
    ),
}
