"""``python -m qa.distributed_faults [--runs N] [--seed S] [--patience F]``

Exits 1 if something goes wrong.

Every run has 3 ranks as processes. At a random collective one of them is killed, stopped,
interrupted (before it or within), raises, or calls another operation or size. The others must fail
in time with the right code; no rank may read wrong numbers, hang, or leave files behind. Some jobs
are then started again with their store, as torchrun does, and must succeed.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections import Counter

from qa.distributed_faults.rank import Plan
from qa.distributed_faults.runs import run


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m qa.distributed_faults")
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="how many (200)")
    parser.add_argument("--seed", type=int, help="of the first run (a random one)")
    parser.add_argument("--patience", type=float, default=1.0, metavar="F",
                        help="factor of all times, for a busy machine (1)")  # fmt: skip
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 30) if options.seed is None else options.seed
    done: Counter[str] = Counter()
    failed = 0
    for number in range(options.runs):
        plan = Plan.of(seed + number, options.patience)
        done[f"{plan.fault} ({plan.transport}{', restarted' * plan.restarts})"] += 1
        if problems := run(plan):
            failed += 1
            print(f"{plan}", *problems, sep="\n  ", flush=True)
    print(", ".join(f"{count} {name}" for name, count in sorted(done.items())))
    print(f"{options.runs} runs from seed {seed}, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
