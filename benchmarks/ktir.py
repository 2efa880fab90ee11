"""Beside ktir-cpu: `python -m benchmarks ktir --ktir DIR`, DIR a checkout of torch-spyre/ktir-cpu.

Kernels of its examples that our operations express run in its interpreter, in a process of its own
(as `execute_function` of `KTIRInterpreter`, without latencies), and as compiled functions on the
card, with the same numbers. Times are of the call alone, and each side's results are compared with
numpy's. A ratio above 1 means that the card is faster.

The vector add is enlarged to 4 M elements by rewriting its numbers; softmax is 4096x1024, and the
matmul 64x2048x8192, as many multiply-adds as 1024x1024x1024.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import Measurement, ratio
from benchmarks.sampling import progress, reference
from benchmarks.suite import SectionError

ROUNDS = 3
OUR_ROUNDS = 7
TOLERANCE = 0.02
TARGET = 100.0
_PROGRAM = """
import json, sys, time
import numpy as np
checkout, case_file = sys.argv[1:]
sys.path.insert(0, checkout)
from ktir_cpu import KTIRInterpreter
case = json.load(open(case_file))
interpreter = KTIRInterpreter()
interpreter.load(case["text"])
arrays = dict(np.load(case["arrays"]))
times = []
for _ in range(case["rounds"]):
    given = {name: value.copy() for name, value in arrays.items()}
    begin = time.perf_counter()
    found = interpreter.execute_function(case["function"], **given, **case["numbers"])
    times.append(time.perf_counter() - begin)
if case["output"] not in found:
    sys.exit(f"no result is called {case['output']}, only {', '.join(map(str, found))}")
np.save(case["result"], found[case["output"]])
print("seconds", json.dumps(times))
"""


@dataclass(frozen=True)
class Case:
    """A kernel of a checkout. ``sizes``: of inputs and output by argument name; the output is last.

    ``expression``: our function of the inputs, ``definition``: numpy's. ``numbers``: its other
    arguments. ``resized``: whole numbers in the file's text and what they become.
    """

    name: str
    file: str
    function: str
    sizes: Mapping[str, tuple[int, ...]]
    expression: Callable[..., Any]
    definition: Callable[..., Any]
    numbers: Mapping[str, int] = field(default_factory=dict)
    resized: Mapping[int, int] = field(default_factory=dict)

    @property
    def output(self) -> str:
        return list(self.sizes)[-1]


def cases() -> list[Case]:
    """Kernels that both sides express."""
    folder, elements = "examples/triton-ktir", 4 << 20
    blocks = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 512, "BLOCK_SIZE_K": 128}
    return [
        Case(
            "vector add, 4 M",
            f"{folder}/vector_add_ktir.mlir",
            "add_kernel",
            dict.fromkeys(("x_ptr", "y_ptr", "output_ptr"), (elements,)),
            lambda x, y: x + y,
            lambda x, y: x + y,
            resized={4096: elements, 4095: elements - 1, 128: elements // 32,
                     127: elements // 32 - 1},
        ),
        Case(
            "softmax 4096x1024",
            f"{folder}/softmax_fwd_ktir.mlir",
            "softmax_kernel",
            dict.fromkeys(("input_ptr", "output_ptr"), (4096, 1024)),
            lambda x: x.softmax(-1),
            _softmax,
        ),
        Case(
            "matmul 64x2048x8192",
            f"{folder}/matmul_fwd_ktir.mlir",
            "matmul_kernel",
            {"a_ptr": (64, 2048), "b_ptr": (2048, 8192), "c_ptr": (64, 8192)},
            lambda a, b: a @ b,
            lambda a, b: a @ b,
            numbers={"K": 2048, **blocks},
        ),
    ]  # fmt: skip


def _softmax(x: Any) -> Any:
    terms = np.exp(x - x.max(-1, keepdims=True))
    return terms / terms.sum(-1, keepdims=True)


def measure(checkout: Path, rounds: int = ROUNDS) -> Iterator[Measurement]:
    """All cases. SectionError for what is no checkout, and with what its side printed."""
    check(checkout)
    for case in cases():
        progress.at(case.name)
        yield from beside(case, checkout, rounds)


def check(checkout: Path) -> None:
    """SectionError unless there is the package and the example of every case."""
    if not (checkout / "ktir_cpu").is_dir():
        raise SectionError(f"{checkout} is no checkout of ktir-cpu: it has no directory ktir_cpu")
    absent = [case.file for case in cases() if not (checkout / case.file).is_file()]
    if absent:
        raise SectionError(
            f"{checkout} is another version of ktir-cpu than this section knows: it has no "
            f"{', no '.join(absent)}"
        )


def beside(case: Case, checkout: Path, rounds: int = ROUNDS) -> Iterator[Measurement]:
    """One case on both sides."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.random(size, np.float32).astype(np.float16) for name, size in
              case.sizes.items()}  # fmt: skip
    arrays[case.output][...] = 0
    inputs = [value for name, value in arrays.items() if name != case.output]
    expected = case.definition(*(value.astype(np.float32) for value in inputs))
    theirs, found = run_theirs(case, checkout, arrays, rounds)
    error = worst(found, expected)
    ours, our_error = run_ours(case, inputs, expected)
    milliseconds = tuple(s * 1e3 for s in theirs)
    yield Measurement(f"{case.name}: ktir-cpu", "ms", milliseconds, compared=False)
    yield Measurement(f"{case.name}: card", "ms", tuple(s * 1e3 for s in ours))
    yield Measurement(f"{case.name}: ktir-cpu, worst error", "", (error,), exact=True)
    yield Measurement(
        f"{case.name}: card, worst error", "", (our_error,), exact=True, target=TOLERANCE
    )
    middle = sorted(ours)[len(ours) // 2]
    title = f"{case.name}: against ktir-cpu"
    yield ratio(title, theirs, [middle] * len(theirs), target=TARGET)


def run_theirs(
    case: Case, checkout: Path, arrays: Mapping[str, Any], rounds: int
) -> tuple[list[float], Any]:
    """Seconds per call in the checkout's interpreter, and its result."""
    text = resized_text((checkout / case.file).read_text(encoding="utf-8"), case.resized)
    with tempfile.TemporaryDirectory() as place:
        paths = {key: str(Path(place) / key) for key in ("arrays.npz", "result.npy", "case.json")}
        np.savez(paths["arrays.npz"], **arrays)
        described = {
            "text": text,
            "function": case.function,
            "numbers": dict(case.numbers),
            "output": case.output,
            "arrays": paths["arrays.npz"],
            "result": paths["result.npy"],
            "rounds": rounds,
        }
        Path(paths["case.json"]).write_text(json.dumps(described), encoding="utf-8")
        command = [sys.executable, "-c", _PROGRAM, str(checkout), paths["case.json"]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SectionError(f"{case.name}: ktir-cpu failed: {last_lines(done.stderr)}")
        found = np.load(paths["result.npy"])
        sizes = case.sizes[case.output]
        if found.size != math.prod(sizes):
            raise SectionError(
                f"{case.name}: ktir-cpu gives {found.size} elements as {case.output}, not {sizes}"
            )
        return json.loads(done.stdout.rpartition("seconds ")[2]), found


def last_lines(text: str) -> str:
    """The end of what a process said."""
    return text.strip()[-500:] or "it says nothing"


def resized_text(text: str, numbers: Mapping[int, int]) -> str:
    """The text with whole numbers replaced, in one go; names such as c128 keep theirs."""
    return re.sub(
        r"(?<![\w%.])\d+|(?<=x)\d+(?=x)|(?<=[<x])\d+(?=x[a-z])",
        lambda found: str(numbers.get(int(found[0]), found[0])),
        text,
    )


def run_ours(case: Case, inputs: list[Any], expected: Any) -> tuple[list[float], float]:
    """Seconds per warm call of the compiled function, and its worst error."""
    import torch

    from spyre.torch_backend.inductor.design_point import call_seconds, compiled_with

    compiled = compiled_with(case.expression, {}, {})
    tensors = [torch.from_numpy(value).to("spyre") for value in inputs]
    result = compiled(*tensors).cpu().numpy()
    times = []
    for _ in range(OUR_ROUNDS):
        time.sleep(0.02)
        reference.tick()
        times.append(call_seconds(compiled, tensors))
    return times, worst(result, expected)


def worst(found: Any, expected: Any) -> float:
    """Largest difference, relative to the largest expected value."""
    wide = np.asarray(found, np.float32).reshape(expected.shape)
    return float(np.abs(wide - expected).max() / np.abs(expected).max())
