"""`python -m qa.wrong_arguments --count N`: exits 1 if a wrong call is computed, crashes, or raises
another error than on the CPU.

Every seed is one call. Calls run in separate processes, so that a crash is one find.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from qa.wrong_arguments.comparison import FINDS, Outcome, counted

CALLS_PER_PROCESS = 500


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m qa.wrong_arguments", description=__doc__)
    parser.add_argument("--count", type=int, default=300, metavar="N", help="how many (300)")
    parser.add_argument("--first", type=int, metavar="SEED", help="the first (a random one)")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="processes at once (1)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.first, options.count)
    first = secrets.randbelow(1 << 30) if options.first is None else options.first
    print(f"seeds {first} to {first + options.count - 1}", flush=True)
    found: list[Outcome] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        end = first + options.count
        ranges = (range(n, min(n + CALLS_PER_PROCESS, end))
                  for n in range(first, end, CALLS_PER_PROCESS))  # fmt: skip
        for outcomes in pool.map(lambda seeds: [*outcomes_of(seeds)], ranges):
            found += outcomes
            for outcome in outcomes:
                if outcome.kind in FINDS:
                    print(f"\nseed {outcome.seed}: {outcome.kind}\n{outcome.text}", flush=True)
    print(counted(found))
    return 1 if any(outcome.kind in FINDS for outcome in found) else 0


def outcomes_of(seeds: range) -> Iterator[Outcome]:
    """Run seeds in a process, and in a new one after each crash."""
    first = seeds.start
    while first < seeds.stop:
        command = [sys.executable, "-m", "qa.wrong_arguments", "--worker"]
        command += ["--first", str(first), "--count", str(seeds.stop - first)]
        environment = {**os.environ, "SPYRE_FALLBACK": "silent"}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        run = subprocess.run(command, env=environment, text=True, **streams)
        begun, is_on_card = first, False
        for line in filter(None, run.stdout.splitlines()):
            fields = json.loads(line)
            if "kind" in fields:
                yield Outcome(**fields)
                first, is_on_card = fields["seed"] + 1, False
            else:
                begun, is_on_card = fields["seed"], fields["is_on_card"]
        if first < seeds.stop:
            kind = "crashed" if is_on_card else "torch's"
            yield Outcome(begun, kind, f"exit code {run.returncode}")
            first = max(first, begun) + 1


def work(first: int, count: int) -> int:
    """Write the outcomes of seeds to the standard output, as lines of JSON."""
    import torch

    from qa.wrong_arguments.calls import random_call
    from qa.wrong_arguments.comparison import compared, error_of

    torch.set_num_threads(1)
    for seed in range(first, first + count):
        print(json.dumps({"seed": seed, "is_on_card": False}), flush=True)
        call = random_call(seed)
        cpu = error_of(call, "cpu")
        print(json.dumps({"seed": seed, "is_on_card": True}), flush=True)
        print(json.dumps(vars(compared(seed, call, cpu, error_of(call, "spyre")))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
