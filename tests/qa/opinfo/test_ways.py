"""The calls of each way, on the CPU and on a CPU with a defect that only this way can find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from qa.opinfo import outcome as o
from qa.opinfo.fakes import FakeOp
from qa.opinfo.outcome import OpResult
from qa.opinfo.run_op import run_op
from qa.opinfo.samples import load_database, sample_inputs
from qa.opinfo.target import Target
from qa.opinfo.ways import WAYS, calls_of, selected
from spyre.errors import DeviceFault, UnsupportedError

OPS = {"exp": FakeOp("exp", torch.exp, inplace_variant=torch.Tensor.exp_, supports_out=True)}
EAGER = [way for way in WAYS if way != "compiled"]


class Other(Target):
    """A CPU on which an operator is another function than the one it is compared with."""

    def __init__(self, other: Callable[..., Any]) -> None:
        super().__init__("cpu")
        self.other = other

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        return self.other(function, *args, **kwargs)


def judged(way: str, target: Target | None = None, op: Any = OPS["exp"]) -> OpResult:
    return run_op(op, "float32", target or Target("cpu"), way=way)


@pytest.mark.parametrize("way", EAGER)
def test_a_right_operator_passes(way: str) -> None:
    result = judged(way)
    assert (result.way, result.outcome, result.failures) == (way, o.PASSED, [])


@pytest.mark.parametrize("way", EAGER)
def test_what_does_not_apply_is_not_selected(way: str) -> None:
    bare = FakeOp("bare", torch.exp, supports_autograd=False)
    applies = selected({"bare": bare}, "float32", way, None) == ["bare"]
    assert applies == (way in ("forward", "noncontiguous"))
    assert selected(OPS, "float32", way, None) == ["exp"]
    assert selected(OPS, "int64", way, None) == []


def test_a_wrong_gradient_is_found() -> None:
    def doubled(function: Any, *args: Any) -> Any:
        return [2 * gradient for gradient in function(*args)]

    assert judged("forward", Other(lambda function, *args: function(*args))).outcome == o.PASSED
    assert judged("backward", Other(doubled)).outcome == o.WRONG


def test_gradients_of_all_arguments_that_have_one() -> None:
    op = load_database()["addmm"]
    call = next(iter(calls_of(op, "float32", "backward", 1)))
    gradients = call.function(*call.sample.args, **call.sample.kwargs)
    assert [one.shape for one in gradients] == [one.shape for one in call.sample.args]
    assert not any(one.requires_grad for one in call.sample.args)


def test_a_missing_gradient_is_found() -> None:
    def without(function: Any, *args: Any) -> Any:
        return [None for _ in function(*args)]

    assert judged("backward", Other(without)).outcome == o.WRONG


def test_an_out_that_is_not_used_is_found() -> None:
    def elsewhere(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.exp(x)

    def resized(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is None:
            return torch.exp(x)
        return out.set_(torch.exp(x))  # type: ignore[call-overload,no-any-return]

    for wrong in (elsewhere, resized):
        target = Other(lambda call, *args, own=wrong: replace(call, op=own)(*args))
        assert judged("out", target).outcome == o.WRONG


def test_a_variant_that_is_not_in_place_is_found() -> None:
    target = Other(lambda call, *args: type(call)(torch.exp)(*args))
    assert judged("in_place", target).outcome == o.WRONG


def test_views_are_not_contiguous() -> None:
    op = load_database()["exp"]
    for call in calls_of(op, "float32", "noncontiguous"):
        (tensor,) = call.sample.args
        assert tensor.numel() < 2 or not tensor.is_contiguous()


def test_what_the_cpu_has_no_other_way_for_does_not_count() -> None:
    def only_forward(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        assert out is None
        return torch.exp(x)

    op = FakeOp("fake", only_forward, supports_out=True)
    assert judged("out", op=op).outcome == o.UNREFERENCED
    assert judged("forward", op=op).outcome == o.PASSED


@pytest.mark.parametrize(("writes", "outcome"), [(True, o.PASSED), (False, o.UNREFERENCED)])
def test_statistics_are_compared_after_equally_many_calls(writes: bool, outcome: str) -> None:
    """As of batch norm with ``out``, which the CPU's function may also leave unwritten."""

    def count(
        x: torch.Tensor, calls: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        calls += 1
        if out is None:
            return torch.exp(x)
        return torch.exp(x, out=out) if writes else out.resize_(x.shape).zero_()

    op = FakeOp("fake", count, (torch.zeros(1),), supports_out=True)
    assert judged("out", op=op).outcome == outcome


def test_a_limit_takes_samples_from_the_first_to_the_last() -> None:
    op = load_database()["add"]
    shown = [str(sample.input.shape) for sample in sample_inputs(op, "float32")]
    few = [str(sample.input.shape) for sample in sample_inputs(op, "float32", 3)]
    assert few == [shown[number * len(shown) // 3] for number in range(3)]


def raising(error: Exception, cause: Exception | None = None) -> OpResult:
    def fail(function: Any, *args: Any) -> Any:
        raise error from cause

    return judged("forward", Other(fail))


def test_a_refusal_by_code_is_neither_right_nor_wrong() -> None:
    refusal = UnsupportedError("SPY930", "too many dims")
    for result in (raising(refusal), raising(RuntimeError("in the compiler"), refusal)):
        assert (result.outcome, result.passes) == (o.REFUSED, False)


@pytest.mark.parametrize(("needed", "outcome"), [(True, o.LAYOUT), (False, o.RAISED)])
def test_a_layout_is_unsupported_where_the_sample_needs_it(needed: bool, outcome: str) -> None:
    def refuse(function: Any, *args: Any) -> Any:
        raise UnsupportedError("SPY906", "sparse tensors are not supported")

    op = FakeOp("fake", torch.Tensor.to_sparse if needed else torch.neg)
    result = judged("forward", Other(refuse), op)
    assert (result.outcome, result.passes) == (outcome, needed)


def test_a_fault_is_no_refusal() -> None:
    assert raising(DeviceFault("SPY811", "out of range")).outcome == o.RAISED


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, o.PASSED), (1.02, o.WRONG)])
def test_where_the_cpu_rounds_too_float64_decides(factor: float, outcome: str) -> None:
    """The device may be off as far as a CPU that computes in bfloat16, and not much further."""
    op = FakeOp("Muon", lambda x: x.bfloat16().float())
    assert judged("forward", Other(lambda function, x: x * factor), op).outcome == outcome
