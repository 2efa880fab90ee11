"""The operators of the database that take a dtype, and their sample inputs."""

from __future__ import annotations

import importlib
import itertools
import random
import re
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.opinfo.trees import mapped

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

    def described(self) -> str:
        """Shapes, dtypes and other arguments in one line."""
        shown = [_shown(argument) for argument in self.args]
        shown += [f"{name}={_shown(argument)}" for name, argument in self.kwargs.items()]
        return " ".join(", ".join(shown).split())

    def summary(self) -> str:
        """The description, cut to what a table can show."""
        line = self.described()
        return line if len(line) <= SUMMARY_LENGTH else line[: SUMMARY_LENGTH - 1] + "…"


def load_database(path: str = DATABASE) -> dict[str, Any]:
    """Operators by key from ``module:attribute``; the order is the database's."""
    module, attribute = path.split(":")
    return {key_of(op): op for op in getattr(importlib.import_module(module), attribute)}


def key_of(op: Any) -> str:
    """``name`` or ``name/variant``, unique in the database."""
    return f"{op.name}/{op.variant_test_name}" if op.variant_test_name else str(op.name)


def selected(database: dict[str, Any], dtype: str, pattern: str | None) -> list[str]:
    """Keys of the operators that take ``dtype`` on the CPU and match the regular expression."""
    matches = re.compile(pattern or "")
    return [k for k, op in database.items() if DTYPES[dtype] in op.dtypes and matches.search(k)]


def seed_all(seed: int) -> None:
    """Seed every generator that sample functions and operators draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def seed_of(key: str, dtype: str) -> int:
    """A seed that is the same in every process and run."""
    return zlib.crc32(f"{key} {dtype}".encode())


def make_samples(op: Any, dtype: str, limit: int | None) -> list[Sample]:
    """The sample inputs of ``op``, the same ones whenever they are made."""
    seed_all(seed_of(key_of(op), dtype))
    found = op.sample_inputs("cpu", DTYPES[dtype], requires_grad=False)
    return [
        Sample((sample.input, *sample.args), dict(sample.kwargs))
        for sample in itertools.islice(found, limit)
    ]


def _shown(argument: Any) -> str:
    return str(mapped(argument, _shown_leaf)).replace("'", "")


def _shown_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
    return leaf
