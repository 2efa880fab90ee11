"""The functions that real bundles were compiled from (../shared/bundles), as callables.

A case holds its function as source text. That of upstream tests has free names; their values are
in the name of the case or in `FREE`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spyre.torch_backend.inductor.hints import declare_tensor_dim, name_tensor_dims, spyre_hint

Function = Callable[..., Any]

FREE: dict[str, dict[str, Any]] = {
    "aminmax": {"op": torch.aminmax},
    "bmm_with_inplace": {"B": 1},
    "subnormal": {"scalar_value": 6e-08},
    "arange_plus": {"S": 128},
    "expand": {"s": 128},
    "mean_keepdim0_mean_fp16": {"op": torch.mean, "keepdim": False},
    "min_keepdim1_min": {"op": torch.min},
    "pad_2d_dim0_left_only": {"pad": (0, 0, 1, 0)},
    "repeat_1d_1": {"repeat_args": (1,)},
    "slice_add_2d1s2": {"dim": 1, "start": 128, "end": 192, "op": lambda _, x: x + x},
    "dim0_amax_3d128_0": {"dim": 2, "start": 32, "end": 160, "op": lambda _, x: torch.amax(x, 0)},
    "dim0_sum_3d64_1": {"dim": 2, "start": 32, "end": 96, "op": lambda _, x: x.sum(0, True)},
    "split_chunk_2d0s0": {"dim": 0, "index": 0, "op": lambda d, k, x: x.chunk(3, d)[k]},
    "split_exp_3d0s1": {"dim": 0, "index": 1, "op": lambda d, k, x: x.chunk(3, d)[k].exp()},
    "split_exp_3d2s0": {"dim": 2, "index": 0, "op": lambda d, k, x: x.chunk(3, d)[k].exp()},
    "view_unsqueeze_add": {"d0": 2, "d1": 3, "d3": 2, "d4": 64},
}
"""Values of free names of upstream functions, by part of the case's name."""


def softplus(x, beta, threshold, one, minus):
    """Softplus whose parameters are tensors, as the upstream test defines it."""
    scaled = x * beta
    soft = torch.relu(scaled) + torch.log(one + torch.exp(minus * torch.abs(scaled)))
    return torch.where(scaled >= threshold, x, soft)


@dataclass(frozen=True)
class RealFunction:
    """A case: ``call`` on ``inputs`` returns ``expected`` within ``tolerance``, on the CPU."""

    name: str
    text: str
    call: Function
    inputs: tuple[torch.Tensor, ...]
    expected: tuple[torch.Tensor, ...]
    tolerance: Mapping[str, float]
    dim_names: Mapping[str, Any]

    @property
    def key(self) -> tuple[Any, ...]:
        """Key of the compiled form: functions with equal keys need one compilation."""
        inputs = tuple((x.dtype, x.shape, x.stride()) for x in self.inputs)
        free = self.name if "up_test" in self.name else ""
        return self.text, inputs, repr(self.dim_names), free

    def on_card(self) -> list[torch.Tensor]:
        """Return copies of the inputs on the card, their dims named as in the case."""
        tensors = [x.to("spyre") for x in self.inputs]
        for name, extent in self.dim_names.get("declare", {}).items():
            declare_tensor_dim(name, extent)
        for number, names in self.dim_names.get("name", {}).items():
            name_tensor_dims(tensors[int(number)], names)
        return tensors


def read_function(directory: Path) -> RealFunction:
    """The function of a case directory."""
    case = json.loads((directory / "case.json").read_text(encoding="utf-8"))
    with np.load(directory / "values.npz") as values:
        buffers = case["buffers"]
        numbers = sorted(int(n.removeprefix("input")) for n in buffers if n.startswith("input"))
        inputs = [_input(buffers[f"input{n}"], values) for n in numbers]
        expected = [torch.from_numpy(values[f"expect_{o['value']}"]) for o in case["outputs"]]
    name = directory.name
    if "fallback_with_restickify" in name:
        inputs = [torch.asin(expected[0].float() - inputs[0].t()).half(), *inputs]
    return RealFunction(
        name,
        case["function"],
        _function(name, case["function"]),
        tuple(inputs),
        tuple(expected),
        case["tolerance"],
        case.get("named_dims") or {},
    )


def _input(buffer: Mapping[str, Any], values: Mapping[str, Any]) -> torch.Tensor:
    host = torch.from_numpy(values[buffer["value"]])
    extents = buffer.get("host", buffer)
    found = torch.empty_strided(extents["shape"], extents["stride"], dtype=host.dtype)
    return found.copy_(host)


def _function(name: str, text: str) -> Function:
    names = {"torch": torch, "math": math, "spyre_hint": _hint, "softplus": softplus}
    names |= _free_names(name)
    if "where_scalarself" in name:
        return lambda condition, y: torch.where(condition, 0.0, y)
    built_in = re.match(r"<built-in method (\w+) of", text)
    if built_in:
        found: Function = getattr(torch, built_in[1])
        return lambda *inputs: found(*inputs)
    text = textwrap.dedent(text)
    if not text.startswith("def "):
        return eval(_first_lambda(text), names)  # type: ignore[no-any-return]
    known = set(names)
    exec(text, names)
    (made,) = set(names) - known - {"__builtins__"}
    if "add_constant" in name:
        return functools.partial(names[made], torch.add)
    if "to_dtype" in name:
        target = re.search(r"to_(\w+?)_[\dx]+$", name.split("to_dtype_")[1])
        assert target is not None
        return functools.partial(names[made], dst_dtype=getattr(torch, target[1]))
    return names[made]  # type: ignore[no-any-return]


def _first_lambda(text: str) -> str:
    """The first lambda of a text that is an excerpt of a longer expression."""
    begin = text.index("lambda")
    for end in range(len(text), begin, -1):
        with contextlib.suppress(SyntaxError):
            tree = ast.parse(f"({text[begin:end]}\n)", mode="eval").body
            first = tree.elts[0] if isinstance(tree, ast.Tuple) else tree
            return ast.unparse(first)
    raise ValueError(text)


def _free_names(name: str) -> dict[str, Any]:
    found = {}
    reduction = re.search(r"_(amin|mean|sum)_(?:pad_)?\dd_dim_([a-z0-9]+)", name)
    if reduction:
        dims = (-1,) if reduction[2] == "neg1" else tuple(map(int, reduction[2]))
        found = {"op": getattr(torch, reduction[1]), "dim": dims[0], "dims": dims}
    dim = re.search(r"_dim_?(\d)$", name)
    if dim:
        found["dim"] = int(dim[1])
    for part, names in FREE.items():
        if part in name:
            found |= names
    return found


def _hint(**given: Any) -> contextlib.AbstractContextManager[None]:
    """Call `spyre_hint` without the expectations of upstream tests for named dims."""
    kept = {name: value for name, value in given.items() if not name.startswith("expected_")}
    return spyre_hint(**kept) if kept else contextlib.nullcontext()
