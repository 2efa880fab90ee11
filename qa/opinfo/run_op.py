"""Judges one operator in one dtype: each sample on the device against the CPU.

Inputs are first copied to the device and back, and the reference gets these values, so the rounding
of inputs is no error of the operator. The copy is checked too: an input that comes back wrong makes
the sample wrong. After the call, arguments are compared like results, which finds missing and
unwanted changes in place.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from qa.opinfo import outcome as o
from qa.opinfo.compare import Expected, compare
from qa.opinfo.outcome import OpResult, SampleResult, summarised
from qa.opinfo.reference import (
    DEVICE_SEED,
    Run,
    expectations,
    movements,
    own_errors,
    run_native,
    run_reference,
    run_truth,
)
from qa.opinfo.refusals import formats_met, refusal_code, refused_dtype, refused_layout
from qa.opinfo.rules import EMPTY, HOST_ARGUMENTS, RANGES, WITHOUT_REFERENCE, is_random
from qa.opinfo.samples import DTYPES, Sample, key_of, seed_all
from qa.opinfo.selection import selects_same
from qa.opinfo.structure import structure_difference
from qa.opinfo.target import Target
from qa.opinfo.tolerances import DEFAULTS, Tolerance, tolerance_of
from qa.opinfo.trees import leaves, mapped
from qa.opinfo.ways import Call, calls_of

REASON_LENGTH = 300


def run_op(
    op: Any,
    dtype: str,
    target: Target,
    limit: int | None = None,
    progress: Callable[[int, str], None] = lambda index, sample: None,
    way: str = "forward",
) -> OpResult:
    """Return the outcome of all samples of ``op``; call ``progress`` before each."""
    start = time.perf_counter()
    results: list[SampleResult] = []
    fallbacks: Counter[str] = Counter()
    for index, call in enumerate(calls_of(op, dtype, way, limit)):
        progress(index, call.sample.summary())
        trial = _Trial(key_of(op), way, dtype, target, call)
        results.append(trial.result(index))
        fallbacks.update(trial.fallbacks)
    seconds = time.perf_counter() - start
    return summarised(key_of(op), dtype, results, dict(fallbacks), seconds, way)


class _Failure(Exception):
    """The outcome of a sample that does not pass, and the reason."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class _Trial:
    """The run of one sample on the CPU and the device."""

    def __init__(self, key: str, way: str, dtype: str, target: Target, call: Call) -> None:
        self.key, self.way, self.dtype = key, way, DTYPES[dtype]
        self.op, self.on_device = call.function, call.on_device or call.function
        self.target, self.sample = target, call.sample
        self.fallbacks: Counter[str] = Counter()

    def result(self, index: int) -> SampleResult:
        """Return the outcome; an exception of the device becomes ``raised`` or ``refused``."""
        shown = self.sample.summary()
        try:
            return SampleResult(index, o.PASSED, sample=shown, error=self._error())
        except _Failure as failure:
            reason = " ".join(str(failure).split())[:REASON_LENGTH]
            return SampleResult(index, failure.outcome, reason, shown)

    def _error(self) -> float:
        """Return the largest error divided by its bound; _Failure for every other outcome."""
        held = self._held()
        native = self._reference(lambda: run_native(self.op, held, stored=self.target.stores_dl16))
        random = is_random(self.key, self.sample.described())
        empty = self.key in EMPTY
        found = self._on_device(held)
        if random:
            self.fallbacks.clear()
        difference = structure_difference(
            found.result, native.result, self.target.type, strides=empty and self.way != "out"
        )
        if difference:
            raise _Failure(o.WRONG, difference)
        if random:
            self._check_range(found.result)
        return 0.0 if empty or random else self._values(held, native, found)

    def _reference(self, call: Callable[[], Run]) -> Run:
        try:
            return call()
        except Exception as error:
            known = self.way != "forward" or WITHOUT_REFERENCE.fullmatch(self.key) is not None
            outcome = o.UNREFERENCED if known else o.RAISED
            raise _Failure(outcome, f"on the CPU: {_first_line(error)}") from error

    def _held(self) -> Sample:
        """Return the sample with the values that the device holds."""
        args, kwargs = self._guarded(
            lambda: mapped((self.sample.args, self.sample.kwargs), self._round_trip)
        )
        return Sample(args, kwargs)

    def _round_trip(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        back = self.target.held(leaf)
        tolerance = DEFAULTS.get(leaf.dtype, Tolerance(0.0, 0.0))
        if leaf.dtype is torch.float32:
            tolerance = Tolerance(0.0, 0.0)
        if leaf.layout is torch.strided:
            self._demand("copy of an input", back, Expected(leaf, leaf), tolerance)
        return back

    def _on_device(self, held: Sample) -> Run:
        """Run the call on the device, and record its fallbacks to the CPU."""
        args, kwargs = self._guarded(lambda: self._arguments(held))
        before = Counter(self.target.fallbacks())
        seed_all(DEVICE_SEED)
        try:
            result = self._guarded(lambda: self.target.run(self.on_device, args, kwargs))
        finally:
            self.fallbacks = Counter(self.target.fallbacks()) - before
        return Run(result, args, kwargs)

    def _arguments(self, held: Sample) -> Any:
        """Return arguments on the device, except for those that torch takes on the CPU only."""
        args, kwargs = self.target.arguments((held.args, held.kwargs))
        on_host = HOST_ARGUMENTS.get(self.key, ())
        pairs = enumerate(zip(args, held.args, strict=True))
        return tuple(own if place in on_host else put for place, (put, own) in pairs), kwargs

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Return ``call()``, with its exceptions converted to a `_Failure`."""
        try:
            return call()
        except _Failure:
            raise
        except Exception as error:
            raise self._raised(error) from error

    def _raised(self, error: Exception) -> _Failure:
        """Classify an exception; unsupported: an undocumented dtype or layout the sample needs."""
        refused, layout = refused_dtype(error), refused_layout(error)
        if refused is not None or layout:
            needed = formats_met(self.op, self.sample.args, self.sample.kwargs)
            if refused in needed:
                return _Failure(o.UNSUPPORTED, _first_line(error))
            if layout and any(isinstance(one, torch.layout) for one in needed - {torch.strided}):
                return _Failure(o.LAYOUT, _first_line(error))
            what = "layout" if layout else "dtype"
            return _Failure(o.RAISED, f"refuses a {what} nobody asked for: {_first_line(error)}")
        return _Failure(o.REFUSED if refusal_code(error) else o.RAISED, _first_line(error))

    def _check_range(self, result: Any) -> None:
        low, high = RANGES.get(self.key, (float("-inf"), float("inf")))
        for tensor in leaves(result):
            if isinstance(tensor, torch.Tensor) and self.key in RANGES:
                values = self._guarded(lambda t=tensor: self.target.fetch(t)).float()
                if not bool(((values >= low) & (values <= high)).all()):
                    raise _Failure(o.WRONG, f"a random number outside [{low}, {high}]")

    def _values(self, held: Sample, native: Run, found: Run) -> float:
        """Compare results and arguments with the references and return the largest error. Movements
        of the CPU's results are only computed if the bound without them is exceeded."""
        tolerance = self._tolerance(self.dtype)
        reference = native
        if tolerance.native > 0 or tolerance.condition > 0:
            reference = self._reference(lambda: run_reference(self.op, held))
        unmoved = [None] * len(reference.tensors())
        try:
            return self._error_of(held, native, found, expectations(native, reference, unmoved))
        except _Failure:
            if not tolerance.condition:
                raise
        moved = movements(self.op, held, reference, tolerance.step)
        try:
            return self._error_of(held, native, found, expectations(native, reference, moved))
        except _Failure:
            if self.dtype is not torch.float32 and self.way != "backward":
                raise
            truth = run_truth(self.op, held)
        moved = own_errors(native, truth, moved)
        return self._error_of(held, native, found, expectations(native, truth, moved))

    def _error_of(self, held: Sample, native: Run, found: Run, expected: list[Expected]) -> float:
        tensors = found.tensors()
        if len(tensors) != len(expected):
            raise _Failure(o.WRONG, f"{len(tensors)} tensors instead of {len(expected)}")
        self._compare_numbers(found.result, native.result)
        errors = [0.0]
        for place, (tensor, wanted) in enumerate(zip(tensors, expected, strict=True)):
            back = self._guarded(lambda t=tensor: _dense(self.target.fetch(t)))
            if back.shape != wanted.native.shape:
                shapes = f"{tuple(back.shape)} instead of {tuple(wanted.native.shape)}"
                raise _Failure(o.WRONG, f"tensor {place}: shape {shapes}")
            tolerance = self._tolerance(wanted.native.dtype)
            if self._selects_same(held, back, wanted):
                continue
            errors.append(self._demand(f"tensor {place}", back, wanted, tolerance))
        return max(errors)

    def _tolerance(self, result: torch.dtype) -> Tolerance:
        return tolerance_of(self.key, self.dtype, result, self.way)

    def _compare_numbers(self, found: Any, native: Any) -> None:
        """Compare numbers, booleans and other leaves that are not tensors."""
        tolerance = self._tolerance(self.dtype)
        for one, other in zip(leaves(found), leaves(native), strict=True):
            if isinstance(one, float | complex):
                wanted = torch.tensor([other])
                expected = Expected(wanted, wanted)
                self._demand("number", torch.tensor([one]), expected, tolerance)
            elif not isinstance(one, torch.Tensor) and one != other:
                raise _Failure(o.WRONG, f"{one} instead of {other}")

    def _selects_same(self, held: Sample, back: torch.Tensor, wanted: Expected) -> bool:
        return selects_same(self.key, held.args, held.kwargs, back, wanted.native)

    def _demand(
        self, what: str, back: torch.Tensor, wanted: Expected, tolerance: Tolerance
    ) -> float:
        difference = compare(back, wanted, tolerance)
        if difference.error > 1.0:
            raise _Failure(o.WRONG, f"{what}: {difference.message}")
        return difference.error


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.layout is torch.strided else tensor.to_dense()
