"""Every outcome of a sample, on the CPU and on devices made wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qa.opinfo import outcome as o
from qa.opinfo.fakes import FakeOp, fail
from qa.opinfo.outcome import OpResult
from qa.opinfo.run_op import run_op
from qa.opinfo.target import Target
from qa.opinfo.trees import mapped

Change = Callable[[torch.Tensor], torch.Tensor]


class Changed(Target):
    """A CPU that changes the results of operators, or the contents of copies."""

    def __init__(self, result: Change | None = None, copy: Change | None = None) -> None:
        super().__init__("cpu")
        self.result, self.copy = result, copy
        self.count = 0

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        self.count += 1
        result = super().run(function, args, kwargs)
        return result if self.result is None else mapped(result, self.result)

    def held(self, tensor: torch.Tensor) -> torch.Tensor:
        back = super().held(tensor)
        return back if self.copy is None else self.copy(back)

    def fallbacks(self) -> dict[str, int]:
        return {"aten.neg.default": self.count, "aten.old.default": 7}


class Refusing(Target):
    """A device that refuses every call, by naming a dtype."""

    def __init__(self, dtype: str) -> None:
        super().__init__("cpu")
        self.dtype = dtype

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        raise TypeError(f"Spyre backend does not support dtype {self.dtype}")


def judged(
    function: Callable[..., Any], target: Target, name: str = "fake", dtype: str = "float32"
) -> OpResult:
    return run_op(FakeOp(name, function), dtype, target)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_right_operator_passes(dtype: str) -> None:
    result = judged(torch.exp, Target("cpu"), dtype=dtype)
    assert (result.outcome, result.counts, result.failures) == (o.PASSED, {o.PASSED: 2}, [])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t * 1.01, "elements differ"),
        (lambda t: t.flip(0), "elements differ"),
        (lambda t: torch.full_like(t, float("nan")), "elements differ"),
        (lambda t: t.double(), "dtype torch.float64"),
        (lambda t: t[:1], "shape"),
    ],
)
def test_a_wrong_result_is_found(dtype: str, change: Change, reason: str) -> None:
    result = judged(torch.exp, Changed(change), dtype=dtype)
    assert result.outcome == o.WRONG
    assert result.counts == {o.WRONG: 2}
    assert reason in result.reason


def test_a_wrong_copy_is_found_though_the_reference_starts_from_it() -> None:
    result = judged(torch.exp, Changed(copy=lambda t: t + 1))
    assert result.outcome == o.WRONG
    assert "copy of an input" in result.reason


def test_a_number_is_compared_too() -> None:
    class Number(Target):
        def run(self, function: Any, args: Any, kwargs: Any) -> Any:
            return function(*args, **kwargs) + 1

    result = judged(lambda t: t.sum().item(), Number("cpu"))
    assert result.outcome == o.WRONG
    assert "number" in result.reason


def test_an_argument_changed_by_the_device_only_is_wrong() -> None:
    class Writing(Target):
        def run(self, function: Any, args: Any, kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            args[0].add_(1)
            return result

    result = judged(torch.exp, Writing("cpu"))
    assert result.outcome == o.WRONG
    assert "tensor 1" in result.reason


def test_an_operator_in_place_passes() -> None:
    assert judged(lambda t: t.add_(1), Target("cpu")).outcome == o.PASSED


def test_what_only_the_device_raises() -> None:
    class Raising(Target):
        def run(self, function: Any, args: Any, kwargs: Any) -> Any:
            return fail(*args)

    result = judged(torch.exp, Raising("cpu"))
    assert (result.outcome, result.reason) == (o.RAISED, "ValueError: no such thing")


def test_what_the_cpu_raises_is_a_failure_too() -> None:
    result = judged(fail, Target("cpu"))
    assert (result.outcome, result.counts) == (o.RAISED, {o.RAISED: 2})
    assert "on the CPU" in result.reason


def test_operators_for_other_devices_do_not_count() -> None:
    result = judged(fail, Target("cpu"), "jiterator_unary")
    assert result.outcome == o.UNREFERENCED
    assert not result.counted


@pytest.mark.parametrize("name", ["float64", "torch.complex64"])
def test_a_documented_refusal_passes_where_the_dtype_is_needed(name: str) -> None:
    dtype = getattr(torch, name.removeprefix("torch."))
    result = judged(lambda t: t.to(dtype), Refusing(name))
    assert (result.outcome, result.passes) == (o.UNSUPPORTED, True)


def test_a_refusal_counts_for_dtypes_on_the_way() -> None:
    result = judged(lambda t: t.double().exp().float(), Refusing("float64"))
    assert result.outcome == o.UNSUPPORTED


def test_a_refusal_nobody_asked_for_does_not_pass() -> None:
    result = judged(torch.exp, Refusing("float64"))
    assert (result.outcome, result.passes) == (o.RAISED, False)


@pytest.mark.parametrize("name", ["float32", "int64", "bool", "nonsense"])
def test_a_refusal_of_a_dtype_with_a_format_does_not_pass(name: str) -> None:
    assert judged(torch.exp, Refusing(name)).outcome == o.RAISED


def test_an_undeclared_random_operator_is_wrong_and_a_declared_one_is_not() -> None:
    assert judged(torch.rand_like, Target("cpu")).outcome == o.WRONG
    assert judged(torch.rand_like, Target("cpu"), "rand_like").outcome == o.PASSED


def test_random_numbers_keep_their_range() -> None:
    result = judged(torch.rand_like, Changed(lambda t: t + 1), "bernoulli")
    assert result.outcome == o.WRONG
    assert "outside" in result.reason


def test_of_empty_tensors_shape_strides_and_dtype_count() -> None:
    assert judged(torch.zeros_like, Changed(lambda t: t + 1), "empty_like").outcome == o.PASSED
    turned = Changed(lambda t: t.t().contiguous().t())
    result = judged(torch.zeros_like, turned, "empty_like")
    assert result.outcome == o.WRONG
    assert "strides" in result.reason


def test_fallbacks_of_the_call_are_counted() -> None:
    assert judged(torch.exp, Changed()).fallbacks == {"aten.neg.default": 2}
