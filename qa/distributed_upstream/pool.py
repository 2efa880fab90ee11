"""Runs methods of torch's `DistributedTest` in one set of processes, with a group per method.

torch starts its processes again for every method; here a rank is a process that runs many of them.
Its default device is the card, or the CPU for comparison.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import tempfile
import unittest
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

GROUP_TIMEOUT = timedelta(seconds=20)
METHOD_SECONDS = 60
"""Time limit of a group and of a method, on an idle machine."""
GROUPS = {"gloo": "gloo", "spyreccl": "cpu:gloo,spyre:spyreccl"}
"""Argument ``backend`` of `init_process_group`, by the backend under test."""
MODULE = "torch.testing._internal.distributed.distributed_test"
SUBJECTS = (
    "Backend_enum_class|get_backend|get_rank|destroy_|new_subgroups|coalescing_manager|"
    "batch_isend_irecv|send_recv|isend|irecv|broadcast|reduce_|all_reduce|sparse_all_reduce|"
    "scatter|gather|all_gather|all_to_all|barrier|ddp_|DistributedDataParallel|powerSGD|"
    "post_localSGD|hook_|autograd|new_group|object"
)
OTHERS = "cuda|profiler|nccl|complex|timeout|stress|monitored|logging"
PASSED, SKIPPED = "passed", "skipped"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a method: ``passed``, ``skipped``, or the error of the first rank that failed."""

    method: str
    result: str

    @property
    def code(self) -> str:
        """The SPY code in the error, or ""."""
        found = re.search(r"SPY\d{3}", self.result)
        return found.group() if found else ""


def is_selected(name: str) -> bool:
    """Return True for tests of collectives and groups that every backend supports."""
    return re.match(f"test_({SUBJECTS})", name) is not None and not re.search(OTHERS, name)


def run_methods(
    backend: str, ranks: int, methods: Sequence[str] = (), patience: float = 1.0
) -> Iterator[Outcome]:
    """Yield outcomes of ``methods`` (default: all selected) on ``spyreccl`` or ``gloo``.

    ``patience``: factor of all time limits.
    """
    with tempfile.TemporaryDirectory(prefix="spyre-upstream-") as scratch:
        pool = _Pool(backend, ranks, Path(scratch), patience)
        for number, method in enumerate(methods or pool.methods()):
            yield pool.run(number, method)
        pool.end()


class _Pool:
    """Processes of all ranks, which are restarted after a method that hangs or ends one of them."""

    def __init__(self, backend: str, ranks: int, scratch: Path, patience: float) -> None:
        self._backend, self._ranks, self._scratch = backend, ranks, scratch
        self._patience = patience
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for rank in range(self._ranks):
            ours, theirs = context.Pipe()
            timeout = GROUP_TIMEOUT * self._patience
            work = (theirs, self._backend, rank, self._ranks, str(self._scratch), timeout)
            process = context.Process(target=serve, args=work, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def methods(self) -> list[str]:
        """The names of the selected methods."""
        return self._ask(0, "methods")

    def _ask(self, rank: int, request: object) -> Any:
        self._pipes[rank].send(request)
        return self._pipes[rank].recv()

    def run(self, number: int, method: str) -> Outcome:
        """Run a method on all ranks."""
        for pipe in self._pipes:
            pipe.send((number, method))
        results = [_received(pipe, METHOD_SECONDS * self._patience) for pipe in self._pipes]
        if any(result.startswith("rank lost") for result in results):
            self.end()
            self._begin()
        failed = [text for text in results if text not in (PASSED, SKIPPED)]
        # the refusal itself comes before its peers' errors, which only report a failed rank
        failed.sort(key=lambda text: "SPY957" in text or "SPY" not in text)
        if failed:
            return Outcome(method, failed[0])
        return Outcome(method, PASSED if PASSED in results else SKIPPED)

    def end(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _received(pipe: Any, seconds: float) -> str:
    try:
        return pipe.recv() if pipe.poll(seconds) else "rank lost: hangs"
    except EOFError:
        return "rank lost: its process ended"


# --- a rank -----------------------------------------------------------------------------------


def serve(pipe: Any, backend: str, rank: int, ranks: int, scratch: str, timeout: timedelta) -> None:
    """Run the methods that are requested through ``pipe``."""
    os.environ.update(_environment(ranks, scratch))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if backend != "gloo":
        torch.set_default_device("spyre")
    module = importlib.import_module(MODULE)
    module.BACKEND = GROUPS[backend]  # the methods compare names with it
    base = module.DistributedTest._DistTestBase
    cases = importlib.import_module("torch.testing._internal.common_utils")
    skips = importlib.import_module("torch.testing._internal.common_distributed").TEST_SKIPS
    codes = {skip.exit_code for skip in skips.values()}

    class UpstreamCase(base, cases.TestCase):  # type: ignore[misc, name-defined]
        rank = property(lambda self: dist.get_rank())
        world_size = property(lambda self: str(ranks))
        init_method = property(lambda self: f"file://{scratch}/again")

        def _barrier(self, *args: Any, **kwargs: Any) -> None:
            meet(dist.distributed_c10d._get_default_store(), ranks, timeout)

    store_file = f"{scratch}/store-{os.getppid()}"
    with suppress(EOFError):
        while True:
            request = pipe.recv()
            if request == "methods":
                pipe.send([name for name in dir(UpstreamCase) if is_selected(name)])
                continue
            number, method = request
            dist.init_process_group(
                GROUPS[backend],
                init_method=f"file://{store_file}-{number}",
                rank=rank,
                world_size=ranks,
                timeout=timeout,
            )
            # a rank that skips must stay until the others have connected to it
            came = dist.FileStore(f"{store_file}-{number}-came", ranks)
            meet(came, ranks, timeout)
            result = _run(UpstreamCase(method), codes)
            meet(came, ranks, timeout)
            with suppress(Exception):
                dist.destroy_process_group()
            pipe.send(result)


def meet(store: Any, ranks: int, timeout: timedelta) -> None:
    """Wait until all ranks have called this; independent of the state of their groups."""
    number = store.add("upstream/came", 1)
    last = -(-number // ranks) * ranks
    if number == last:
        store.set(f"upstream/met/{last}", "yes")
    store.wait([f"upstream/met/{last}"], timeout)


def _environment(ranks: int, scratch: str) -> Mapping[str, str]:
    # folders that torch's own runner makes
    for name in ("barrier", "test_dir"):
        (Path(scratch) / name).mkdir(exist_ok=True)
    return {
        # decorators decide by it which tests to skip, and know only torch's backends
        "BACKEND": "gloo",
        "WORLD_SIZE": str(ranks),
        "TEMP_DIR": scratch,
        "INIT_METHOD": f"file://{scratch}/unused",
        "OMP_NUM_THREADS": "1",
        "SPYRE_NUM_THREADS": "1",
    }


def _run(case: unittest.TestCase, skip_codes: set[int]) -> str:
    found = unittest.TestResult()
    case.run(found)
    failed = [text for _, text in (*found.errors, *found.failures)]
    # torch's decorators exit the process instead of skipping
    exits = [re.search(r"^SystemExit: (\d+)$", text, re.M) for text in failed]
    if any(match and int(match[1]) in skip_codes for match in exits):
        return SKIPPED
    return failed[0] if failed else SKIPPED if found.skipped else PASSED
