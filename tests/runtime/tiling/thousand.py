"""``python -m tests.runtime.tiling.thousand --count 1000 --seed 0``: tiled = untiled, how often.

Prints every case that differs, then "N/M cases equal".
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from spyre.errors import SpyreError
from spyre.hw.device.device import Device
from tests.runtime.tiling.random_cases import check_case, random_case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device, equal, began = Device(threads=1), 0, time.perf_counter()
    kinds: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.count):
        case = random_case(seed)
        kinds[case.name.split()[0]] += 1
        try:
            difference = check_case(case, device)
        except SpyreError as error:
            difference = str(error)
        equal += not difference
        if difference:
            print(f"{case}\n  {difference}", flush=True)
    print(", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())))
    print(f"{equal}/{options.count} cases equal, {time.perf_counter() - began:.0f} s")
    return 0 if equal == options.count else 1


if __name__ == "__main__":
    sys.exit(main())
