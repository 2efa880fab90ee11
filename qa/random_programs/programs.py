"""A random program: inputs and statements, its text as a function, and how to run it.

A statement is a line of Python over names of tensors. A failing seed prints the same text that is
compiled, so it can be pasted into a test.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F

HALF, FLOAT, INT, BOOL = torch.float16, torch.float32, torch.int64, torch.bool
PRELUDE = {"torch": torch, "F": F}


@dataclass(frozen=True)
class Input:
    """A tensor of random values that depend on ``seed`` only.

    ``view``: expression of the view that the program gets instead, of this tensor or of an earlier
    input, whose memory it then shares; "" for the tensor itself.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    seed: int
    view: str = ""

    def make(self) -> torch.Tensor:
        """Return the values on the CPU: multiples of 1/64 below 4, integers up to 8, or bools."""
        generator = torch.Generator().manual_seed(self.seed)
        if self.dtype is BOOL:
            return torch.randint(0, 2, self.shape, generator=generator).bool()
        if self.dtype is INT:
            return torch.randint(-8, 9, self.shape, generator=generator)
        # Multiples of 1/64 below 4 have an exact form in all float formats of the card.
        return (torch.randint(-256, 257, self.shape, generator=generator) / 64).to(self.dtype)

    def __str__(self) -> str:
        text = f"{self.name}: {str(self.dtype).removeprefix('torch.')}{list(self.shape)}"
        return f"{text}, as {self.view}" if self.view else text


@dataclass(frozen=True)
class Statement:
    """``target = text``, or ``text`` alone if it writes in place (``target`` is empty).

    ``reads``: names of tensors in the text. ``kind``: class of its roundings, see
    :mod:`.comparison`.
    """

    target: str
    text: str
    reads: tuple[str, ...]
    kind: str

    def __str__(self) -> str:
        return f"{self.target} = {self.text}" if self.target else self.text


@dataclass(frozen=True)
class Program:
    """A function of ``inputs``; it returns all tensors that it names."""

    seed: int
    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of tensors in the order of their definitions, inputs first."""
        return [i.name for i in self.inputs] + [s.target for s in self.statements if s.target]

    def source(self) -> str:
        """Return the program as the text of a Python function."""
        lines = [f"def program({', '.join(i.name for i in self.inputs)}):"]
        lines += [f"    {statement}" for statement in self.statements]
        return "\n".join([*lines, f"    return {', '.join(self.names)},"]) + "\n"

    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """Return the compiled function; tracebacks and Dynamo can read its text."""
        source, file = self.source(), f"<random program {self.seed}, {len(self.statements)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        scope: dict[str, Any] = dict(PRELUDE)
        exec(compile(source, file, "exec"), scope)
        made: Callable[..., tuple[torch.Tensor, ...]] = scope["program"]
        return made

    def without(self, dropped: Statement) -> Program:
        """Return the program without a statement and the statements that depend on it."""
        gone = {dropped.target} - {""}
        kept = []
        for statement in self.statements:
            if statement is dropped or gone & set(statement.reads):
                gone |= {statement.target} - {""}
            else:
                kept.append(statement)
        read = {name for statement in kept for name in statement.reads}
        read |= {word for i in self.inputs if i.name in read for word in re.findall(r"\w+", i.view)}
        inputs = [i for i in self.inputs if i.name in read] or self.inputs[:1]
        return replace(self, inputs=tuple(inputs), statements=tuple(kept))

    def __str__(self) -> str:
        heads = "".join(f"# {i}, seed {i.seed}\n" for i in self.inputs)
        return heads + self.source()


def execute(statement: Statement, scope: dict[str, torch.Tensor]) -> None:
    """Run one statement over the tensors in ``scope``."""
    exec(str(statement), dict(PRELUDE), scope)


def input_tensors(program: Program, device: str) -> dict[str, torch.Tensor]:
    """Return the inputs on a device, by name."""
    given: dict[str, torch.Tensor] = {}
    for i in program.inputs:
        given[i.name] = i.make().to(device)
        if i.view:
            given[i.name] = eval(i.view, {}, given)
    return given


def ordered(scope: Mapping[str, torch.Tensor], names: Sequence[str]) -> list[torch.Tensor]:
    """Return the tensors in the order of ``names``."""
    return [scope[name] for name in names]
