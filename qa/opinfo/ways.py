"""The ways to run an operator of the database, each with its calls and its bar.

A way turns samples into calls: a function for the device, and its equivalent on the CPU.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qa.opinfo.samples import DTYPES, Sample, sample_inputs
from qa.opinfo.trees import leaves, mapped

Operator = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """A sample and the function to call; ``on_device``: function for the device, if different."""

    sample: Sample
    function: Operator
    on_device: Operator | None = None


@dataclass(frozen=True)
class Way:
    """``bar``: share of the supported float32 operators that must pass. ``limit``: default
    number of samples of an operator. ``calls``: makes calls from operator, sample, number."""

    applies: Callable[[Any, torch.dtype], bool]
    calls: Callable[[Any, Any, int], Iterator[Call]]
    bar: float = 0.995
    limit: int | None = None
    requires_grad: bool = False


def selected(database: dict[str, Any], dtype: str, way: str, pattern: str | None) -> list[str]:
    """Return keys of the operators that support ``dtype`` and the way and match the pattern."""
    matches = re.compile(pattern or "")
    applies, own = WAYS[way].applies, DTYPES[dtype]
    return [key for key, op in database.items() if applies(op, own) and matches.search(key)]


def calls_of(op: Any, dtype: str, way: str, limit: int | None = None) -> Iterator[Call]:
    """Yield the calls of all samples of ``op``, or of ``limit`` of them, spread evenly."""
    chosen = WAYS[way]
    limit = chosen.limit if limit is None else limit
    samples = sample_inputs(op, dtype, limit, requires_grad=chosen.requires_grad)
    for number, sample in enumerate(samples):
        yield from chosen.calls(op, sample, number)


# --- forward, also of views ----------------------------------------------------------------------


def _forward(op: Any, sample: Any, number: int) -> Iterator[Call]:
    yield Call(Sample.of(sample), op.op)


def _noncontiguous(op: Any, sample: Any, number: int) -> Iterator[Call]:
    if _is_strided(Sample.of(sample)):
        yield Call(Sample.of(sample.noncontiguous()), op.op)


def _is_strided(sample: Sample) -> bool:
    tensors = [t for t in leaves((sample.args, sample.kwargs)) if isinstance(t, torch.Tensor)]
    return all(tensor.layout is torch.strided for tensor in tensors)


def _compiled(op: Any, sample: Any, number: int) -> Iterator[Call]:
    torch._dynamo.reset()

    def function(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    yield Call(Sample.of(sample), op.op, torch.compile(function, dynamic=False))


# --- gradients -----------------------------------------------------------------------------------


def _backward(op: Any, sample: Any, number: int) -> Iterator[Call]:
    """Yield a call for the gradients of all tensors in the sample that require one."""
    own = Sample.of(sample)
    flat = leaves((own.args, own.kwargs))
    places = {
        place
        for place, leaf in enumerate(flat)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    }
    if places:
        yield Call(
            own.detached(), _Gradients(op.op, sample.output_process_fn_grad, frozenset(places))
        )


@dataclass(frozen=True)
class _Gradients:
    """Calls ``op`` and returns the gradients of the arguments at ``places``, some may be None.

    The gradients of the results are the same numbers on every device.
    """

    op: Operator
    differentiable: Operator
    places: frozenset[int]

    def __call__(self, *args: Any, **kwargs: Any) -> list[torch.Tensor | None]:
        inputs: list[torch.Tensor] = []
        count = itertools.count()

        def leaf_of_graph(leaf: Any) -> Any:
            if next(count) not in self.places:
                return leaf
            inputs.append(leaf.detach().requires_grad_())
            return inputs[-1]

        args, kwargs = mapped((args, kwargs), leaf_of_graph)
        outputs = [
            leaf
            for leaf in leaves(self.differentiable(self.op(*args, **kwargs)))
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        behind = [_weights(output) for output in outputs]
        return list(torch.autograd.grad(outputs, inputs, behind, allow_unused=True))


def _weights(output: torch.Tensor) -> torch.Tensor:
    """Return numbers between -0.75 and 0.75 in mixed order, exact in every device format."""
    numbers = torch.arange(output.numel()) * 7919 % 13 - 6
    weights = (numbers / 8).reshape(output.shape).to(output.dtype).to(output.device)
    return weights if output.layout is torch.strided else weights.to_sparse()


# --- results in tensors that are there -----------------------------------------------------------


def _contiguous(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like, memory_format=torch.contiguous_format)


def _strided(like: torch.Tensor) -> torch.Tensor:
    return like.new_zeros((*like.shape, 2))[..., 1]


def _to_resize(like: torch.Tensor) -> torch.Tensor:
    return like.new_zeros(0)


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


OUTS = (_contiguous, _strided, _to_resize)
FEW = 4
"""Number of samples tried with every kind of ``out``; later ones take one kind in turn."""


def _out(op: Any, sample: Any, number: int) -> Iterator[Call]:
    if not _is_strided(Sample.of(sample)):
        return
    for make in OUTS if number < FEW else (OUTS[number % len(OUTS)],):
        yield Call(Sample.of(sample), _Out(op.op, make, written=False), _Out(op.op, make))


@dataclass(frozen=True)
class _Out:
    """Calls ``op`` with ``out=`` tensors of the right dtype; returns them, their strides, and
    whether ``op`` returned these tensors. Not ``written``: returns the expected contents instead,
    because some CPU operators write nothing to a tensor that has gaps."""

    op: Operator
    make: Callable[[torch.Tensor], torch.Tensor]
    written: bool = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plain = self.op(*args, **kwargs)
        if not self.written:
            copies = mapped((args, kwargs), _copied)  # of statistics that a call may change
            self._check_written(leaves(plain), self._filled(_contiguous, plain, *copies)[0])
        outs, returned = self._filled(self.make, plain, args, kwargs)
        same = all(one is other for one, other in zip(leaves(returned), outs, strict=True))
        strides = [list(out.stride()) for out in outs]
        return outs if self.written else leaves(plain), strides, same

    def _filled(self, make: Any, plain: Any, args: Any, kwargs: Any) -> tuple[list[Any], Any]:
        """The ``out`` tensors after a call with them, and what it returned."""
        outs = [make(leaf) for leaf in leaves(plain)]
        out = outs[0] if isinstance(plain, torch.Tensor) else tuple(outs)
        return outs, self.op(*args, **kwargs, out=out)

    def _check_written(self, plain: Sequence[Any], outs: Sequence[Any]) -> None:
        """RuntimeError if a contiguous ``out`` has nothing of the results: no reference, then."""
        pairs = zip(plain, outs, strict=True)
        if any(out.count_nonzero() == 0 < one.count_nonzero() for one, out in pairs):
            raise RuntimeError(f"{self.op} of the CPU leaves out unwritten")


def _in_place(op: Any, sample: Any, number: int) -> Iterator[Call]:
    if not sample.broadcasts_input:
        for variant in _in_place_variants(op):
            yield Call(Sample.of(sample), _InPlace(variant))


@dataclass(frozen=True)
class _InPlace:
    """Calls an in-place variant on a copy; returns the copy and True if the variant returned it."""

    variant: Operator

    def __call__(self, first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        own = first.clone()
        returned = self.variant(own, *args, **kwargs)
        return own, returned is own


def _in_place_variants(op: Any) -> list[Operator]:
    return [v for v in (op.inplace_variant, op.inplace_operator_variant) if v is not None]


WAYS = {
    "forward": Way(lambda op, dtype: dtype in op.dtypes, _forward),
    "backward": Way(
        lambda op, dtype: op.supports_autograd and dtype in op.backward_dtypes,
        _backward,
        requires_grad=True,
    ),
    "out": Way(lambda op, dtype: op.supports_out and dtype in op.dtypes, _out),
    "in_place": Way(
        lambda op, dtype: bool(_in_place_variants(op)) and dtype in op.dtypes, _in_place
    ),
    "noncontiguous": Way(lambda op, dtype: dtype in op.dtypes, _noncontiguous),
    "compiled": Way(lambda op, dtype: dtype in op.dtypes, _compiled, bar=0.99, limit=4),
}
