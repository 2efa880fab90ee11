"""Many streams with many launches and events: `python -m tests.runtime.flex.stress --seeds 200`.

Every seed makes a random program over tensors that belong to streams: a launch writes the tensor of
its own stream and reads any two; events order what touches the same tensor. The program runs once
over all streams and once on one stream of another card; all tensors must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from spyre.hw.device.device import Device
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.flex.steps import JobPlan
from spyre.runtime.flex.stream import Event, FlexStream
from spyre.runtime.memory.allocator import SpyreTensor
from tests.runtime.flex import kernels

CONSTANTS = 8
Step = tuple[str, int, int, int]
"""("launch", written tensor, read, read) or ("order", stream that waits, stream waited for, 0)."""


class Side(msgspec.Struct):
    """A card with the program's tensors."""

    device: FlexDevice
    plan: JobPlan
    tensors: list[SpyreTensor]
    streams: list[FlexStream]

    @classmethod
    def make(cls, directory: Path, count: int, policy: str, seed: int, one: bool) -> Side:
        device = FlexDevice(Device(threads=1), policy=policy)
        plan = kernels.load(device, directory)
        generator = np.random.default_rng(seed)
        values = generator.integers(0, 2000, (count + CONSTANTS, *kernels.STICK)) / 8
        tensors = [device.to_device(v.astype(np.float16), f"t{k}") for k, v in enumerate(values)]
        device.synchronize()
        pool = [device.default_stream] * count
        if not one:
            pool = [device.streams.take(k % 2) for k in range(count)]
        return cls(device, plan, tensors, pool)

    def run(self, program: list[Step]) -> None:
        for kind, first, second, third in program:
            if kind == "order":
                self.streams[first].wait_event(self.streams[second].record_event(Event()))
            else:
                chosen = [self.tensors[k] for k in (second, third, first)]
                self.streams[first].launch(self.plan, chosen)
        self.device.synchronize()

    def contents(self) -> list[bytes]:
        return [self.device.to_host(t).storage.tobytes() for t in self.tensors]


class ProgramMaker:
    """Steps in an order that is right on one stream; events make it right on all.

    ``changed``: when each stream's tensor was last written. ``seen``: what each stream has waited
    for. ``readers``: streams that read a tensor since it was written.
    """

    def __init__(self, streams: int, seed: int) -> None:
        self.streams = streams
        self.random = random.Random(seed)
        self.steps: list[Step] = []
        self.changed = [0] * streams
        self.seen = [[0] * streams for _ in range(streams)]
        self.readers: list[set[int]] = [set() for _ in range(streams)]

    def launch(self, number: int) -> None:
        """Append a launch and the waits it needs."""
        stream = self.random.randrange(self.streams)
        sources = [self._source(stream) for _ in range(2)]
        for source in sources:
            if source < self.streams and source != stream:
                self._read(stream, source, number)
        for reader in sorted(self.readers[stream]):
            self.steps.append(("order", stream, reader, 0))
        self.readers[stream].clear()
        self.steps.append(("launch", stream, *sources))
        self.changed[stream] = number

    def _source(self, stream: int) -> int:
        """Its own tensor, another stream's, or a constant."""
        if self.random.random() < 0.4:
            return self.streams + self.random.randrange(CONSTANTS)
        return stream if self.random.random() < 0.9 else self.random.randrange(self.streams)

    def _read(self, stream: int, source: int, number: int) -> None:
        if self.seen[stream][source] < self.changed[source]:
            self.steps.append(("order", stream, source, 0))
            self.seen[stream][source] = number
        self.readers[source].add(stream)


def make_program(streams: int, launches: int, seed: int) -> list[Step]:
    """A random program of ``launches`` per stream on average."""
    maker = ProgramMaker(streams, seed)
    for number in range(1, streams * launches + 1):
        maker.launch(number)
    return maker.steps


def check_seed(directory: Path, streams: int, launches: int, seed: int) -> tuple[bool, float]:
    """Whether both runs agree, and seconds of the run over all streams."""
    program = make_program(streams, launches, seed)
    policy = ("serialised", "concurrent")[seed % 2]
    many = Side.make(directory, streams, policy, seed, one=False)
    begin = time.perf_counter()
    many.run(program)
    seconds = time.perf_counter() - begin
    one = Side.make(directory, streams, "serialised", seed, one=True)
    one.run(program)
    agree = many.contents() == one.contents()
    for side in (many, one):
        side.device.close()
    return agree, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--launches", type=int, default=1000, help="per stream, on average")
    chosen = parser.parse_args()
    failed, slowest, begin = [], 0.0, time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        bundle = kernels.distance(Path(directory) / "distance")
        gc.disable()  # with 64,000 launches queued it would take a third of the time
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            gc.collect()
            agree, seconds = check_seed(bundle, chosen.streams, chosen.launches, seed)
            slowest = max(slowest, seconds)
            if not agree:
                failed.append(seed)
                print(f"seed {seed}: results differ", flush=True)
    total = chosen.streams * chosen.launches
    print(
        f"{chosen.seeds - len(failed)}/{chosen.seeds} seeds equal to the sequential run; "
        f"{total} launches each, slowest {slowest:.2f} s, all {time.perf_counter() - begin:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
