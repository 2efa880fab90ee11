"""Samples of the operator database with rows of several sticks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from qa.opinfo.samples import DTYPES, Sample, sample_inputs
from qa.opinfo.trees import leaves, mapped

STICK_BYTES = 128
LARGEST = 2**17
"""Elements of a tensor beyond which a sample is not run, to keep the time of a run bounded."""


def widened(op: Any, dtype: str, sticks: int, limit: int) -> Iterator[Sample]:
    """Yield samples of ``op`` whose rows have ``sticks`` sticks, at most ``limit``.

    A size of a sample is exchanged by the width in all dims of all tensors that have it, or in
    their last dims only, also if an argument is that number, wherever the CPU takes the result;
    values repeat.
    """
    width = sticks * STICK_BYTES // DTYPES[dtype].itemsize
    seen: set[str] = set()
    for sample in sample_inputs(op, dtype, requires_grad=False):
        original = Sample.of(sample).detached()
        for candidate in _candidates(original, width):
            if candidate.described() in seen or not _runs(op, candidate):
                continue
            seen.add(candidate.described())
            yield candidate
            if len(seen) == limit:
                return


def _candidates(sample: Sample, width: int) -> Iterator[Sample]:
    tree = sample.args, sample.kwargs
    tensors = [leaf for leaf in leaves(tree) if _is_dense(leaf)]
    for size in dict.fromkeys(t.shape[-1] for t in tensors if t.dim() and t.shape[-1] > 1):
        numbers = sum(type(leaf) is int and leaf == size for leaf in leaves(tree))
        # With two numbers exchanged, results of some operators fill the memory.
        changes = itertools.product((True, False), (False, True) if numbers == 1 else (False,))
        for change in (_Change(size, width, *each) for each in changes):
            if all(math.prod(change.shape(tensor)) <= LARGEST for tensor in tensors):
                yield Sample(*mapped(tree, change))


@dataclass(frozen=True)
class _Change:
    """Widens the dims of ``size`` of a tensor to ``width``, or only its last dim if it has it.

    ``with_numbers``: numbers ``size`` become ``width`` too.
    """

    size: int
    width: int
    last_only: bool
    with_numbers: bool

    def shape(self, tensor: torch.Tensor) -> list[int]:
        last = tensor.dim() - 1
        return [
            self.width if own == self.size and (dim == last or not self.last_only) else own
            for dim, own in enumerate(tensor.shape)
        ]

    def __call__(self, leaf: Any) -> Any:
        """Return a tensor with its values repeated; other leaves as is."""
        if self.with_numbers and type(leaf) is int and leaf == self.size:
            return self.width
        if not _is_dense(leaf) or leaf.numel() == 0 or self.shape(leaf) == list(leaf.shape):
            return leaf
        shape = self.shape(leaf)
        wide = leaf.repeat([-(-new // old) for new, old in zip(shape, leaf.shape, strict=True)])
        for dim, new in enumerate(shape):
            wide = wide.narrow(dim, 0, new)
        return wide.contiguous()


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided


def _runs(op: Any, sample: Sample) -> bool:
    """Return True if the CPU takes the sample; operators may change their arguments."""
    args, kwargs = mapped((sample.args, sample.kwargs), _copied)
    try:
        op.op(*args, **kwargs)
    except Exception:  # any error of any operator: the sizes do not fit each other
        return False
    return True


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
