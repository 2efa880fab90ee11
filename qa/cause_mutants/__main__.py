"""Command line: `python -m qa.cause_mutants [DIR] [--count N] [--seed S] [-v]`."""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path

from qa import BUNDLES, directory
from qa.cause_mutants.computations import EXCHANGES, make_computation_mutants
from qa.cause_mutants.mutants import KINDS, make_mutants


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.cause_mutants", description=__doc__)
    parser.add_argument("directory", nargs="?", type=directory, default=str(BUNDLES), metavar="DIR")
    parser.add_argument("--count", type=int, default=60, help="mutants whose outputs are wrong")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--computations", action="store_true", help="change what is computed, not the addresses"
    )
    parser.add_argument("--least", type=int, help="exit code 1 if fewer are named first")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every mutant")
    options = parser.parse_args()
    counts: Counter[tuple[str, bool]] = Counter()
    kinds, make = KINDS, make_mutants
    if options.computations:
        kinds, make = EXCHANGES, make_computation_mutants
    with tempfile.TemporaryDirectory() as place:
        rng = random.Random(options.seed)
        for mutant in make(options.directory, options.count, rng, Path(place)):
            counts[mutant.kind, mutant.is_named] += 1
            if options.verbose or not mutant.is_named:
                print(mutant, flush=True)
    for kind in kinds:
        print(f"{kind:10}{counts[kind, True]:4} of {counts[kind, True] + counts[kind, False]}")
    named = sum(count for (_, is_named), count in counts.items() if is_named)
    print(f"the cause is named first in {named} of {sum(counts.values())}")
    return 1 if options.least is not None and named < options.least else 0


if __name__ == "__main__":
    raise SystemExit(main())
