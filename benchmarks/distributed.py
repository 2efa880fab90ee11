"""Collectives between two ranks, against gloo on the CPU: `python -m benchmarks distributed`.

Two processes with one kernel thread each; every quantity in turn, round by round, from a barrier to
the end of the call on rank 0. The cards send float16 through shared memory, and again over gloo;
gloo alone sends float32 of as many bytes, and float16 of as many elements.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping

from benchmarks.results import ROOT, Measurement
from benchmarks.sampling import progress

KIB, MIB = 1 << 10, 1 << 20
SIZES, QUICK_SIZES = (16 * KIB, 8 * MIB, 64 * MIB), (16 * KIB, MIB)
ROUNDS, QUICK_ROUNDS = 7, 3
SMALL_CALLS = 50
"""Calls of a small operation in a round, whose median counts."""
TRANSPORTS = ("shm", "gloo")
TARGETS_MS = {"all_reduce 16 KiB": 0.6, "barrier": 0.3}
TARGETS: Mapping[tuple[str, str, str], float] = {
    ("shm", "all_reduce", "float32"): 1.0,
    ("shm", "all_reduce", "float16"): 0.5,
    ("shm", "all_gather", "float32"): 1.2,
    ("shm", "reduce_scatter", "float32"): 1.2,
    ("gloo", "all_reduce", "float32"): 1.3,
    ("gloo", "all_gather", "float32"): 1.3,
    ("gloo", "reduce_scatter", "float32"): 1.3,
}
"""The cards' time over gloo's, by transport, operation and dtype of gloo's tensors."""
Call = Callable[[], object]


def measure(quick: bool) -> Iterator[Measurement]:
    """Measure both transports."""
    for transport in TRANSPORTS:
        progress.at(f"two ranks over {transport}")
        found = _ranks(transport, quick)
        for name, values in found.items():
            is_ours = name.startswith("cards")
            what = name.partition(": ")[2]
            target = TARGETS_MS.get(what) if is_ours and transport == "shm" else None
            yield Measurement(
                f"{transport}: {name}", "ms", tuple(values), target=target, compared=is_ours
            )
        yield from _ratios(transport, found)


def _ratios(transport: str, found: Mapping[str, list[float]]) -> Iterator[Measurement]:
    for name, values in found.items():
        side, _, what = name.partition(": ")
        operation, _, size = what.partition(" ")
        if side != "cards" or not size or size.endswith("KiB"):
            continue
        for other in ("float32", "float16"):
            beside = found.get(f"gloo {other}: {what}")
            if beside is not None:
                pairs = zip(values, beside, strict=True)
                yield Measurement(
                    f"{transport}: {what}, over gloo's {other}",
                    "x",
                    tuple(own / of_gloo for own, of_gloo in pairs),
                    target=TARGETS.get((transport, operation, other)),
                    compared=False,
                )


def _ranks(transport: str, quick: bool) -> dict[str, list[float]]:
    """Run the two ranks; return rank 0's milliseconds by quantity and round."""
    with tempfile.TemporaryDirectory(prefix="spyre-ranks-") as scratch:
        common = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "SPYRE_NUM_THREADS": "1",
            "SPYRECCL_TRANSPORT": transport,
            "LOCAL_WORLD_SIZE": "2",
        }
        command = [sys.executable, "-m", "benchmarks.distributed", scratch, str(int(quick))]
        processes = [
            subprocess.Popen(
                command,
                env={**common, "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for rank in range(2)
        ]
        printed = [process.communicate()[0] for process in processes]
    for process in processes:
        if process.returncode:
            raise RuntimeError(f"a rank ended with {process.returncode}")
    values: dict[str, list[float]] = json.loads(printed[0])
    return values


# --- a rank -----------------------------------------------------------------------------------


def rank_main(scratch: str, quick: bool) -> None:
    """Run a rank's process; rank 0 prints its times."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(
        "cpu:gloo,spyre:spyreccl", init_method=f"file://{scratch}/store", rank=rank, world_size=2
    )
    calls: dict[str, Call] = {"cards: barrier": lambda: dist.barrier(device_ids=[rank])}
    for size in QUICK_SIZES if quick else SIZES:
        calls |= _calls_of(size)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(1 + (QUICK_ROUNDS if quick else ROUNDS)):
        for name, call in calls.items():
            is_small = name.endswith(("barrier", "KiB"))
            times = sorted(_timed(call) for _ in range(SMALL_CALLS if is_small else 1))
            found[name].append(times[len(times) // 2] * 1e3)
    if rank == 0:
        # the first round is a warm-up
        print(json.dumps({name: values[1:] for name, values in found.items()}))
    dist.destroy_process_group()


def _timed(call: Call) -> float:
    import torch.distributed as dist

    dist.barrier()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _calls_of(size_bytes: int) -> dict[str, Call]:
    """Return all-reduces of a size; all-gathers and reduce-scatters too if it is large."""
    import torch
    import torch.distributed as dist

    text = f"{size_bytes // MIB} MiB" if size_bytes >= MIB else f"{size_bytes // KIB} KiB"
    half, single = torch.float16, torch.float32
    sides = {
        "cards": ("spyre", half, size_bytes // 2),
        "gloo float32": ("cpu", single, size_bytes // 4),
        "gloo float16": ("cpu", half, size_bytes // 2),
    }
    calls: dict[str, Call] = {}
    for side, (device, dtype, count) in sides.items():
        whole = torch.zeros(count, dtype=dtype, device=device)
        part = torch.zeros(count // 2, dtype=dtype, device=device)
        calls[f"{side}: all_reduce {text}"] = lambda x=whole: dist.all_reduce(x)  # type: ignore[misc]
        if size_bytes >= MIB and side != "gloo float16":
            calls[f"{side}: all_gather {text}"] = lambda x=whole, y=part: (  # type: ignore[misc]
                dist.all_gather_single(x, y)
            )
            calls[f"{side}: reduce_scatter {text}"] = lambda x=whole, y=part: (  # type: ignore[misc]
                dist.reduce_scatter_single(y, x)
            )
    return calls


if __name__ == "__main__":
    rank_main(sys.argv[1], bool(int(sys.argv[2])))
