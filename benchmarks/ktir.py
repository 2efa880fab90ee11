"""Against ktir-cpu: `python -m benchmarks ktir --ktir DIR`, DIR a checkout of torch-spyre/ktir-cpu.

Kernels of its examples run in its interpreter, in a separate process (`execute_function` of
`KTIRInterpreter`, without latencies), and the same texts on the card (`torch.spyre.ktir`), with the
same numbers, in turn. Its BLAS has as many threads as the card. Times are wall and CPU time of the
call alone; linking is the CPU time of a text's first call. Both sides' results are compared with
numpy's. A ratio above 1 means that the card is faster; the ratios of CPU times have targets. A case
that fails is reported; the others run.

The vector add is enlarged to 4 M elements by rewriting its numbers; softmax is 4096x1024, and the
matmul 64x2048x8192, as many multiply-adds as 1024x1024x1024.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import Measurement, ratio
from benchmarks.sampling import progress, reference
from benchmarks.suite import SectionError
from spyre import config

ROUNDS = 5
OUR_CALLS = 3
TOLERANCE = 0.02
MOST_LINKING_MS = 100.0
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
for _ in sys.stdin:
    given = {name: value.copy() for name, value in arrays.items()}
    begin, processors = time.perf_counter(), time.process_time()
    found = interpreter.execute_function(case["function"], **given, **case["numbers"])
    seconds = time.perf_counter() - begin, time.process_time() - processors
    if case["output"] not in found:
        sys.exit(f"no result is called {case['output']}, only {', '.join(map(str, found))}")
    np.save(case["result"], found[case["output"]])
    print("seconds", json.dumps(seconds), flush=True)
"""
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Seconds:
    """Seconds of one call: wall time, and CPU time of all processors together."""

    wall: float
    processors: float


@dataclass(frozen=True)
class Case:
    """A kernel of a checkout. ``sizes``: of inputs and output by argument name; the output is last.

    ``definition``: numpy's function of the inputs. ``target``: how often its CPU time ours should
    be. ``numbers``: its other arguments; versions of the file may have fewer. ``resized``:
    replacements of whole numbers in the file's text.
    """

    name: str
    file: str
    function: str
    sizes: Mapping[str, tuple[int, ...]]
    definition: Callable[..., Any]
    target: float
    numbers: Mapping[str, int] = field(default_factory=dict)
    resized: Mapping[int, int] = field(default_factory=dict)

    @property
    def output(self) -> str:
        return list(self.sizes)[-1]


def cases() -> list[Case]:
    """Return the kernels that both sides can run."""
    folder, elements = "examples/triton-ktir", 4 << 20
    blocks = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 512, "BLOCK_SIZE_K": 128}
    return [
        Case(
            "vector add, 4 M",
            f"{folder}/vector_add_ktir.mlir",
            "add_kernel",
            dict.fromkeys(("x_ptr", "y_ptr", "output_ptr"), (elements,)),
            lambda x, y: x + y,
            25.0,
            numbers={"BLOCK_SIZE": elements // 32},
            resized={4096: elements, 4095: elements - 1, 128: elements // 32,
                     127: elements // 32 - 1},
        ),
        Case(
            "softmax 4096x1024",
            f"{folder}/softmax_fwd_ktir.mlir",
            "softmax_kernel",
            dict.fromkeys(("input_ptr", "output_ptr"), (4096, 1024)),
            _softmax,
            400.0,
            numbers={"n_rows": 4096},
        ),
        Case(
            "matmul 64x2048x8192",
            f"{folder}/matmul_fwd_ktir.mlir",
            "matmul_kernel",
            {"a_ptr": (64, 2048), "b_ptr": (2048, 8192), "c_ptr": (64, 8192)},
            lambda a, b: a @ b,
            100.0,
            numbers={"K": 2048, **blocks},
        ),
    ]  # fmt: skip


def _softmax(x: Any) -> Any:
    terms = np.exp(x - x.max(-1, keepdims=True))
    return terms / terms.sum(-1, keepdims=True)


def measure(checkout: Path, rounds: int = ROUNDS) -> Iterator[Measurement]:
    """Measure all cases. SectionError if there is no checkout, or at the end if cases failed."""
    if not (checkout / "ktir_cpu").is_dir():
        raise SectionError(f"{checkout} is no checkout of ktir-cpu: it has no directory ktir_cpu")
    failed = []
    for case in cases():
        progress.at(case.name)
        try:
            yield from beside(case, checkout, rounds)
        except SectionError as error:
            failed.append(str(error))
    if failed:
        raise SectionError("; ".join(failed))


def beside(case: Case, checkout: Path, rounds: int = ROUNDS) -> Iterator[Measurement]:
    """Measure one case on both sides in turn."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.random(size, np.float32).astype(np.float16) for name, size in
              case.sizes.items()}  # fmt: skip
    arrays[case.output][...] = 0
    inputs = [value for name, value in arrays.items() if name != case.output]
    expected = case.definition(*(value.astype(np.float32) for value in inputs))
    theirs, ours = [], []
    with TheirSide(case, checkout, arrays) as other:
        our_side = OurSide(case, checkout, arrays)
        for _ in range(rounds):
            theirs.append(other.call())
            ours.append(our_side.call())
        error = worst(other.result(), expected)
    yield from _compared(case, theirs, ours)
    yield Measurement(
        f"{case.name}: linking, processor time", "ms", (our_side.linking_ms,),
        target=MOST_LINKING_MS,
    )  # fmt: skip
    yield Measurement(f"{case.name}: ktir-cpu, worst error", "", (error,), exact=True)
    our_error = worst(our_side.result(), expected)
    yield Measurement(
        f"{case.name}: card, worst error", "", (our_error,), exact=True, target=TOLERANCE
    )


def _compared(
    case: Case, theirs: Sequence[Seconds], ours: Sequence[Seconds]
) -> Iterator[Measurement]:
    name = case.name
    for kind, title in (("wall", ""), ("processors", ", processor time")):
        their_times, our_times = ([getattr(s, kind) for s in side] for side in (theirs, ours))
        milliseconds = [tuple(s * 1e3 for s in times) for times in (their_times, our_times)]
        yield Measurement(f"{name}: ktir-cpu{title}", "ms", milliseconds[0], compared=False)
        yield Measurement(f"{name}: card{title}", "ms", milliseconds[1])
        target = case.target if title else None
        yield ratio(f"{name}: against ktir-cpu{title}", their_times, our_times, target=target)


class TheirSide:
    """A kernel in the checkout's interpreter, in a process that waits for requests.

    SectionError with its output if it fails.
    """

    def __init__(self, case: Case, checkout: Path, arrays: Mapping[str, Any]) -> None:
        self._case, self._checkout, self._arrays = case, checkout, arrays

    def __enter__(self) -> TheirSide:
        self._place = tempfile.TemporaryDirectory()
        self._paths = {
            key: str(Path(self._place.name) / key)
            for key in ("arrays.npz", "result.npy", "case.json", "errors")
        }
        try:
            self._begin()
        except BaseException:
            self._place.cleanup()
            raise
        return self

    def _begin(self) -> None:
        case, paths = self._case, self._paths
        text = text_of(case, self._checkout)
        np.savez(paths["arrays.npz"], **self._arrays)
        described = {
            "text": resized_text(text, case.resized),
            "function": case.function,
            "numbers": taken_numbers(case, text),
            "output": case.output,
            "arrays": paths["arrays.npz"],
            "result": paths["result.npy"],
        }
        Path(paths["case.json"]).write_text(json.dumps(described), encoding="utf-8")
        threads = str(config.thread_count())
        environment = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, threads)}
        environment.pop("OPENBLAS_CORETYPE", None)
        with open(paths["errors"], "w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(self._checkout), paths["case.json"]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._place.cleanup()

    def call(self) -> Seconds:
        """Request one call and return its times."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("call\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        for line in self._process.stdout:  # prints of the interpreter may come first
            if line.startswith("seconds "):
                return Seconds(*json.loads(line.removeprefix("seconds ")))
        raise self._failure()

    def _failure(self) -> SectionError:
        self._process.wait()
        said = last_lines(Path(self._paths["errors"]).read_text(encoding="utf-8"))
        return SectionError(f"{self._case.name}: ktir-cpu failed: {said}")

    def result(self) -> Any:
        """Return the result of the last call."""
        found, sizes = np.load(self._paths["result.npy"]), self._case.sizes[self._case.output]
        if found.size != math.prod(sizes):
            raise SectionError(
                f"{self._case.name}: ktir-cpu gives {found.size} elements as "
                f"{self._case.output}, not {sizes}"
            )
        return found


def text_of(case: Case, checkout: Path) -> str:
    """Return the text of a case's file. SectionError if the checkout lacks it."""
    file = checkout / case.file
    if not file.is_file():
        raise SectionError(
            f"{case.name}: {checkout} is another version of ktir-cpu than this section knows: "
            f"it has no {case.file}"
        )
    return file.read_text(encoding="utf-8")


def taken_numbers(case: Case, text: str) -> dict[str, int]:
    """Return the numbers that the function takes, by name. SectionError for an unknown one."""
    signature = re.search(rf"func\.func @{case.function}\((.*?)\n?\s*\)", text, re.DOTALL)
    if signature is None:
        raise SectionError(f"{case.name}: {case.file} has no function {case.function}")
    arguments = re.findall(r"%(\w+)\s*:", signature[1])
    numbers = [name for name in arguments if name not in case.sizes]
    if unknown := [name for name in numbers if name not in case.numbers]:
        raise SectionError(
            f"{case.name}: {case.function} takes {', '.join(unknown)} in this checkout, which "
            "this section does not know"
        )
    return {name: case.numbers[name] for name in numbers}


def last_lines(text: str) -> str:
    """Return the end of a process's output."""
    return text.strip()[-500:] or "it says nothing"


def resized_text(text: str, numbers: Mapping[int, int]) -> str:
    """Return the text with whole numbers replaced in one pass, except in names such as c128."""
    return re.sub(
        r"(?<![\w%.])\d+|(?<=x)\d+(?=x)|(?<=[<x])\d+(?=x[a-z])",
        lambda found: str(numbers.get(int(found[0]), found[0])),
        text,
    )


class OurSide:
    """A kernel's text on the card, which has been called before. ``linking_ms``: CPU time of the
    first call of the text, once its kernels are loaded.
    """

    def __init__(self, case: Case, checkout: Path, arrays: Mapping[str, Any]) -> None:
        import torch

        text = text_of(case, checkout)
        numbers = taken_numbers(case, text)
        tensors = {
            name: torch.from_numpy(value.ravel()).to("spyre") for name, value in arrays.items()
        }
        self._output = tensors[case.output]
        for _ in range(2):
            function = torch.spyre.ktir(resized_text(text, case.resized), case.function)
            given = {**tensors, **numbers}
            self._values = [given[argument.name] for argument in function.arguments]
            begin = time.process_time()
            function(*self._values)
            torch.spyre.synchronize()
            self.linking_ms = (time.process_time() - begin) * 1e3
        self._function = function

    def call(self) -> Seconds:
        """Return the times of the fastest of OUR_CALLS calls; the first ones wake threads."""
        import torch

        found = []
        for _ in range(OUR_CALLS):
            time.sleep(0.02)
            reference.tick()
            wall, begin = time.perf_counter(), time.process_time()
            self._function(*self._values)
            torch.spyre.synchronize()
            seconds = time.perf_counter() - wall, time.process_time() - begin
            found.append(Seconds(*seconds))
        return min(found, key=lambda seconds: seconds.wall)

    def result(self) -> Any:
        """Return the result of the last call."""
        return self._output.cpu().numpy()


def worst(found: Any, expected: Any) -> float:
    """Return the largest difference relative to the largest expected value."""
    wide = np.asarray(found, np.float32).reshape(expected.shape)
    return float(np.abs(wide - expected).max() / np.abs(expected).max())
