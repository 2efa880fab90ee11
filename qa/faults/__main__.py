"""``python -m qa.faults [--seed S] [--count N]``: exits 1 if a fault has a wrong consequence.

Every fault is injected into a correct program. Its exit code must be right and its output have no
traceback, files must be whole or unchanged, and the next run must succeed. Kinds of faults take
turns; ``--kind`` selects kinds, ``--every`` injects each fault once.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from collections import Counter
from pathlib import Path

from qa.faults.inject import KINDS, chosen, report, workshop


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m qa.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="of all that is random (a random one)")
    parser.add_argument("--count", type=int, default=300, metavar="N", help="how many (300)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only these (repeatable)")
    parser.add_argument("--every", action="store_true", help="every fault once, instead of N")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 30) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    done: Counter[str] = Counter()
    failed = 0
    count = None if options.every else options.count
    with (
        # processes that a fault leaves behind may write while it is removed
        tempfile.TemporaryDirectory(prefix="spyre-faults-", ignore_cleanup_errors=True) as scratch,
        workshop(Path(scratch) / "shop") as place,
    ):
        for kind, text in report(chosen(place, options.kind or KINDS, count, seed), seed):
            done[kind] += 1
            if text:
                failed += 1
                print(text, flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(done.items())))
    print(f"{sum(done.values())} faults, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
