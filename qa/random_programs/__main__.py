"""`python -m qa.random_programs --seeds N`: exits 1 if a program differs or crashes.

Every seed is one program, run eagerly, compiled, and compiled with dynamic sizes, on a card of DL16
or of IEEE halves by turns. A failing program is shrunk and printed as a function. Programs with an
unsupported feature, and programs that torch cannot trace for the CPU either, are counted
separately. With `--kind training` a seed is a training step: layers, a loss and hooks; unstable
steps (:mod:`.training`) are counted separately too.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections import Counter
from typing import TextIO

from qa.random_programs.runner import FINDS, KINDS, Outcome, outcomes


class Progress:
    """Prints the numbers of programs and finds and the rate on one line if output is a terminal."""

    def __init__(self, seeds: int, stream: TextIO) -> None:
        self.seeds, self.stream = seeds, stream
        self.ran = self.finds = 0
        self.begin = time.monotonic()

    def note(self, outcome: Outcome) -> None:
        """Count an outcome and print the line."""
        self.ran += 1
        self.finds += outcome.kind in FINDS
        if self.stream.isatty():
            rate = 60 * self.ran / max(time.monotonic() - self.begin, 1e-9)
            finds = f"{self.finds} find{'s' * (self.finds != 1)}"
            line = f"{self.ran} of {self.seeds} programs, {finds}, {rate:.0f} a minute"
            self.stream.write(f"\r{line}\x1b[K" + "\n" * (self.ran == self.seeds))
            self.stream.flush()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m qa.random_programs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many (100)")
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0], help="of seeds (functions)")
    parser.add_argument("--first", type=int, metavar="SEED", help="the first (a random one)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="J", help="processes")
    options = parser.parse_args()
    first = secrets.randbelow(1 << 30) if options.first is None else options.first
    print(f"seeds {first} to {first + options.seeds - 1}", flush=True)
    kinds: Counter[str] = Counter()
    progress = Progress(options.seeds, sys.stderr)
    refusals: dict[str, list[int]] = {}
    for outcome in outcomes(first, options.seeds, options.jobs, options.kind):
        kinds[outcome.kind or "equal"] += 1
        progress.note(outcome)
        if outcome.kind and outcome.kind not in FINDS:
            refusals.setdefault(outcome.text, []).append(outcome.seed)
        elif outcome.kind:
            print(
                f"\nseed {outcome.seed} ({outcome.numerics})\n{outcome.text}\n{outcome.program}",
                flush=True,
            )
    for text, seeds in sorted(refusals.items(), key=lambda item: -len(item[1])):
        print(f"{len(seeds):5d} {text} (seed {seeds[0]})")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    return 1 if progress.finds else 0


if __name__ == "__main__":
    sys.exit(main())
