"""Time to read bundles: `python -m benchmarks.parsing [--json]`.

Three modules of 5,000 executes (no operands; three operands, each with its own constants and sum;
32 operands) are parsed and lowered, and an SDSC of 32 cores is decoded, checked and planned. Median
of nine calls after a first one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from spyre.hw.plans.core_plan import plan_operation
from spyre.mlir.builder.operations import build_sdsc
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.sdsc.codec import decode_sdsc, encode_sdsc
from spyre.mlir.sdsc.inspection import inspect_sdsc
from spyre.mlir.sdsc.reader import read_operation
from spyre.mlir.text.lowering import lower
from spyre.mlir.text.parser import parse_module

EXECUTES, QUICK_EXECUTES = 5_000, 1_000
ROUNDS = 9


@dataclass(frozen=True)
class Reading:
    """Median ``seconds`` to read a file of ``size_bytes``."""

    name: str
    size_bytes: int
    seconds: float


def measure(rounds: int = ROUNDS, executes: int = EXECUTES) -> list[Reading]:
    """Measure all readings."""
    return [*(_module(operands, executes, rounds) for operands in (0, 3, 32)), _sdsc(rounds)]


def _module(operands: int, executes: int, rounds: int) -> Reading:
    text = module_text(operands, executes)
    name = f"{executes} executes, {operands} operands"
    return Reading(
        name, len(text), _median(lambda: lower(parse_module(text, "bundle.mlir")), rounds)
    )


def module_text(operands: int, executes: int = EXECUTES) -> str:
    """Return a module of ``executes`` statements; up to 4 operands have separate constants."""
    lines = ["module {", "  func.func @sdsc_bundle() {"]
    shared = operands > 4
    if shared:
        lines += [f"    %s{k} = arith.constant {k * 128} : index" for k in range(operands)]
    for e in range(executes):
        names = [f"%s{k}" for k in range(operands)]
        if not shared:
            names = [f"%v{e}_{k}" for k in range(operands)]
            for k, name in enumerate(names):
                lines.append(f"    %a{e}_{k} = arith.constant {k << 34} : index")
                lines.append(f"    %b{e}_{k} = arith.constant {e * 128} : index")
                lines.append(f"    {name} = arith.addi %a{e}_{k}, %b{e}_{k} : index")
        ids = ", ".join(str(-1 - k) for k in range(operands))
        lines.append(
            f"    sdscbundle.sdsc_execute ({', '.join(names)}) "
            f'{{sdsc_filename="sdsc_0.json", symbol_ids=[{ids}]}}'
        )
    return "\n".join([*lines, "    return", "  }", "}", ""])


def _sdsc(rounds: int) -> Reading:
    operands = [HostOperand(k << 34) for k in range(3)]
    spec = pointwise("add", (512, 4096), operands[:2], operands[2], {"mb": 32})
    data = encode_sdsc(build_sdsc(spec), indent=2)

    def read() -> None:
        sdsc = decode_sdsc(data, "sdsc_0.json")
        inspect_sdsc(sdsc, "sdsc_0.json")
        op = read_operation(sdsc, "sdsc_0.json")
        starts = np.array([t.starts for t in op.tensors], np.int64)
        plan_operation(op, starts - starts[:, :1])

    return Reading("SDSC of 32 cores: decode, check, plan", len(data), _median(read, rounds))


def _median(call: Callable[[], object], rounds: int) -> float:
    call()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    readings = measure()
    if as_json:
        print(json.dumps([asdict(reading) for reading in readings]))
        return
    for reading in readings:
        milliseconds = reading.seconds * 1e3
        print(f"{reading.name:40} {reading.size_bytes / 1024:8.1f} KiB {milliseconds:9.2f} ms")


if __name__ == "__main__":
    main()
