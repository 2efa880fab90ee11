"""Operators for tests of the runner: one per behaviour, with two samples each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch


@dataclass(frozen=True)
class FakeSample:
    """A sample input with the attributes that the runner reads."""

    input: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    broadcasts_input: bool = False

    @staticmethod
    def output_process_fn_grad(result: Any) -> Any:
        return result

    def noncontiguous(self) -> FakeSample:
        return replace(self, input=self.input.t().contiguous().t())


@dataclass(frozen=True)
class FakeOp:
    """An operator with the attributes that the runner reads."""

    name: str
    op: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    variant_test_name: str = ""
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16)
    inplace_variant: Callable[..., Any] | None = None
    supports_out: bool = False
    supports_autograd: bool = True
    inplace_operator_variant: None = None

    @property
    def backward_dtypes(self) -> tuple[torch.dtype, ...]:
        return self.dtypes

    def sample_inputs(
        self, device: str, dtype: torch.dtype, requires_grad: bool
    ) -> Iterator[FakeSample]:
        for shape in ((3,), (2, 5)):
            values = torch.randn(shape, dtype=torch.float32, device=device).to(dtype)
            yield FakeSample(values.requires_grad_(requires_grad), self.arguments)


def die(tensor: torch.Tensor) -> torch.Tensor:
    """End the process at the second sample, as a fault in compiled code would."""
    if tensor.dim() == 2:
        os.abort()
    return tensor.clone()


def hang(tensor: torch.Tensor) -> torch.Tensor:
    time.sleep(600)
    return tensor


def fail(tensor: torch.Tensor) -> torch.Tensor:
    raise ValueError("no such thing\nsecond line")


def print_lines(tensor: torch.Tensor) -> torch.Tensor:
    """Write to standard output in the way compiled code does."""
    os.write(1, b'{"event": "result"}\n')
    return tensor + 1


OPS = [
    FakeOp("right", torch.exp),
    FakeOp("dies", die),
    FakeOp("hangs", hang),
    FakeOp("fails", fail),
    FakeOp("prints", print_lines),
    FakeOp("mm", torch.neg),
]
