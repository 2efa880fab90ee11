"""The operators of the database that take a dtype, and their sample inputs."""

from __future__ import annotations

import importlib
import random
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qa.opinfo.trees import mapped

DATABASE = "torch.testing._internal.common_methods_invocations:op_db"
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64)
}
SUMMARY_LENGTH = 200


@dataclass(frozen=True)
class Sample:
    """Arguments of one call, on the CPU in the dtype under test."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(sample: Any) -> Sample:
        """From a sample input of the database."""
        return Sample((sample.input, *sample.args), dict(sample.kwargs))

    def detached(self) -> Sample:
        """Return the sample with tensors detached from the autograd graph."""
        return Sample(*mapped((self.args, self.kwargs), _detached))

    def described(self) -> str:
        """Return shapes, dtypes and other arguments in one line."""
        shown = [_shown(argument) for argument in self.args]
        shown += [f"{name}={_shown(argument)}" for name, argument in self.kwargs.items()]
        return " ".join(", ".join(shown).split())

    def summary(self) -> str:
        """Return the description, cut to the width of a table's column."""
        line = self.described()
        return line if len(line) <= SUMMARY_LENGTH else line[: SUMMARY_LENGTH - 1] + "…"


def load_database(path: str = DATABASE) -> dict[str, Any]:
    """Return the operators of ``module:attribute`` by key, in the database's order."""
    module, attribute = path.split(":")
    return {key_of(op): op for op in getattr(importlib.import_module(module), attribute)}


def key_of(op: Any) -> str:
    """Return ``name`` or ``name/variant``, which is unique in the database."""
    return f"{op.name}/{op.variant_test_name}" if op.variant_test_name else str(op.name)


def seed_all(seed: int) -> None:
    """Seed every generator that sample functions and operators draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def seed_of(key: str, dtype: str) -> int:
    """Return a seed that is the same in every process and run."""
    return zlib.crc32(f"{key} {dtype}".encode())


def sample_inputs(
    op: Any, dtype: str, limit: int | None = None, *, requires_grad: bool = False
) -> list[Any]:
    """Return the sample inputs of ``op``, the same in every call; at most ``limit`` of them, spread
    evenly."""
    seed_all(seed_of(key_of(op), dtype))
    found = list(op.sample_inputs("cpu", DTYPES[dtype], requires_grad=requires_grad))
    if limit is None or limit >= len(found):
        return found
    return [found[number * len(found) // limit] for number in range(limit)]


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _shown(argument: Any) -> str:
    return str(mapped(argument, _shown_leaf)).replace("'", "")


def _shown_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
    return leaf
