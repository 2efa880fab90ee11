"""``python -m qa.distributed_upstream [METHOD ...]``: torch's own tests of collectives.

Runs them on 3 cards (``--ranks``) and, to compare, with gloo on the CPU. Exits 1 if a method passes
there but fails on the cards other than by a refusal of `NOT_ON_A_CARD`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter

from qa.distributed_upstream.pool import PASSED, SKIPPED, Outcome, run_methods

NOT_ON_A_CARD = ("SPY311", "SPY906", "SPY958")
"""Codes of refusals: complex numbers and float64, sparse tensors, premultiplied sums."""


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m qa.distributed_upstream")
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="only these")
    parser.add_argument("--ranks", type=int, default=3, metavar="N")
    parser.add_argument("--patience", type=float, default=1.0, metavar="F",
                        help="factor of all times, for a busy machine (1)")  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="the whole text of failures")
    options = parser.parse_args()
    found = {}
    for backend in ("gloo", "spyreccl"):
        found[backend] = {}
        for outcome in run_methods(backend, options.ranks, options.methods, options.patience):
            found[backend][outcome.method] = outcome
            if outcome.result not in (PASSED, SKIPPED):
                print(f"{backend}: {outcome.method}: {_told(outcome, options.verbose)}", flush=True)
    for backend, outcomes in found.items():
        counts = Counter(
            o.result if o.result in (PASSED, SKIPPED) else f"failed {o.code}".rstrip()
            for o in outcomes.values()
        )
        print(f"{backend}: {dict(counts)} of {len(outcomes)}")
    missing = [
        method
        for method, outcome in found["gloo"].items()
        if outcome.result == PASSED
        and (here := found["spyreccl"][method]).result != PASSED
        and here.code not in NOT_ON_A_CARD
    ]
    print("missing: " + (", ".join(missing) or "none"))
    return 1 if missing else 0


def _told(outcome: Outcome, whole: bool) -> str:
    """Return the text of a failure: all of it, or the line that names the error."""
    lines = outcome.result.strip().splitlines()
    errors = [
        line for line in lines if re.match(r"[\w.]+: .*\bSPY\d{3}|[\w.]+(Error|Failure)\b", line)
    ]
    return outcome.result if whole else (errors or lines)[-1][:300]


if __name__ == "__main__":
    sys.exit(main())
