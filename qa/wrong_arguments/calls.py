"""Calls by seed: an operator with a kernel on the card, with one wrong argument.

Right arguments are recorded from torch's samples of operators (OpInfo). Then one is changed: a
size, the rank, the dtype, the device, a dim, an index, a number, or the tensor for the result.
Every fourth seed is one of the wrong calls that torch lists.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spyre.torch_backend.eager.registry import kernels_by_name

DTYPES = (torch.float32, torch.float16, torch.int64, torch.int32, torch.bool, torch.uint8)
MAX_ELEMENTS = 4096
SAMPLES = 8


@dataclass(frozen=True)
class Call:
    """A function with CPU tensors as arguments. ``stays``: ids of those that stay on the CPU."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    change: str = ""
    stays: frozenset[int] = frozenset()

    def __str__(self) -> str:
        parts = [*map(described, self.args)]
        parts += (f"{name}={described(value)}" for name, value in self.kwargs.items())
        return f"{self.name}({', '.join(parts)})  # {self.change}"


def described(value: Any) -> str:
    """Return dtype and sizes of a tensor as text; its elements if it is a short one of integers."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        few = value.numel() <= 8 and not value.is_floating_point() and not value.is_complex()
        strides = "" if value.is_contiguous() else f" by {list(value.stride())}"
        return f"{dtype}{list(value.shape)}{strides}" + (f" {value.tolist()}" if few else "")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(described, value))}]"
    return repr(value)


@cache
def operator_samples() -> dict[str, Any]:
    """Return torch's samples of operators by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {op.formatted_name: op for op in op_db}


@cache
def families() -> frozenset[str]:
    """Return the names of operators with a kernel on the card, without overloads."""
    return frozenset(name.partition(".")[0].removesuffix("_") for name in kernels_by_name())


class _Recorded(TorchDispatchMode):
    """Records the calls of operators in `families`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        name = function._schema.name.removeprefix("aten::").removesuffix("_")
        if name in families():
            self.calls.append(Call(str(function), function, tuple(args), dict(kwargs)))
        return function(*args, **kwargs)


def random_call(seed: int) -> Call:
    """Return the call of a seed."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            name = draw.choice([*operator_samples()])
            op = operator_samples()[name]
            found = _listed_call(op, draw) if seed % 4 == 0 else _changed_call(op, draw)
            if found is not None:
                return found


def _listed_call(op: Any, draw: random.Random) -> Call | None:
    """Return one of torch's wrong calls of an operator, or None without any for the CPU."""
    if op.error_inputs_func is None:
        return None
    try:
        listed = [e.sample_input for e in op.error_inputs("cpu")]
    except Exception:  # some ask for another device
        return None
    if not listed:
        return None
    sample = draw.choice(listed)
    tensors = [t for t in tensors_of((sample.input, sample.args, sample.kwargs))]
    if any(t.is_meta or t.layout is not torch.strided for t in tensors):
        return None
    args = (sample.input, *sample.args)
    return Call(op.formatted_name, op.op, args, dict(sample.kwargs), "listed by torch")


def _changed_call(op: Any, draw: random.Random) -> Call | None:
    dtype = draw.choice([d for d in DTYPES[:3] if d in op.dtypes] or [None])
    if dtype is None or not (calls := _calls_of(op.formatted_name, dtype)):
        return None
    call = draw.choice(calls)
    tensors = tensors_of((call.args, call.kwargs))
    if not tensors or any(t.numel() > MAX_ELEMENTS or t.is_complex() for t in tensors):
        return None
    if draw.random() < 0.25 and (given := _with_out(call, draw)) is not None:
        return given
    return _with_wrong_argument(call, draw)


@cache
def _calls_of(name: str, dtype: torch.dtype) -> list[Call]:
    """Return the calls of operators with kernels that some of torch's samples make."""
    recorded, op = _Recorded(), operator_samples()[name]
    torch.manual_seed(0)
    try:
        for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES):
            with recorded:
                op(sample.input, *sample.args, **sample.kwargs)
    except Exception:  # of an operator without this dtype on the CPU
        return []
    return recorded.calls


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for one in value for t in tensors_of(one)] if isinstance(value, (list, tuple)) else []


def _with_out(call: Call, draw: random.Random) -> Call | None:
    """Return the call with an ``out`` tensor of a wrong dtype or wrong sizes."""
    if call.function._schema.is_mutable:
        return None
    variant = _out_variant(call.function)
    result = call.function(*call.args, **call.kwargs)
    if variant is None or not isinstance(result, torch.Tensor):
        return None
    out, change = _wrong_tensor(result, draw)
    return Call(str(variant), variant, call.args, {**call.kwargs, "out": out}, f"out: {change}")


def _out_variant(op: Any) -> Any:
    """Return the overload with the same arguments and ``out``, or None."""
    packet = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::"))
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments]
    for overload in map(packet.__getattr__, packet.overloads()):
        arguments = overload._schema.arguments
        given = [(a.name, str(a.type)) for a in arguments if not a.is_out]
        if given == wanted and [a.name for a in arguments if a.is_out] == ["out"]:
            return overload
    return None


def _with_wrong_argument(call: Call, draw: random.Random) -> Call | None:
    position = draw.randrange(len(call.args)) if call.args else 0
    if not call.args:
        return None
    value = call.args[position]
    if isinstance(value, torch.Tensor) and draw.random() < 0.1:
        return Call(call.name, call.function, call.args, call.kwargs,
                    f"{position}: on the CPU", frozenset((id(value),)))  # fmt: skip
    wrong, change = _wrong_value(value, draw)
    args = (*call.args[:position], wrong, *call.args[position + 1 :])
    return Call(call.name, call.function, args, call.kwargs, f"{position}: {change}")


def _wrong_value(value: Any, draw: random.Random) -> tuple[Any, str]:
    match value:
        case torch.Tensor():
            return _wrong_tensor(value, draw)
        case bool():
            return not value, "the other truth value"
        case int():
            wrong = draw.choice((value + 1, value - 1, -value - 1, value + 5, 0, -7))
            return wrong, f"{wrong} for {value}"
        case float():
            return draw.choice((-value, value + 1.0, 0.0)), f"for {value}"
        case list() | tuple() if value:
            return _wrong_list(value, draw)
    return draw.choice((value, None)), "nothing"


def _wrong_list(value: Sequence[Any], draw: random.Random) -> tuple[Any, str]:
    form, at = draw.choice(("shorter", "longer", "element")), draw.randrange(len(value))
    if form == "shorter":
        return [*value[:at], *value[at + 1 :]], "a list without an element"
    if form == "longer":
        return [*value, value[at]], "a list with an element more"
    wrong, change = _wrong_value(value[at], draw)
    return [*value[:at], wrong, *value[at + 1 :]], f"element {at}: {change}"


def _wrong_tensor(x: torch.Tensor, draw: random.Random) -> tuple[torch.Tensor, str]:
    dim = draw.randrange(x.dim()) if x.dim() else 0
    forms: dict[str, Callable[[], torch.Tensor]] = {
        "another dtype": lambda: x.to(draw.choice([d for d in DTYPES if d is not x.dtype])),
        "a dim more": lambda: x.unsqueeze(0),
        "empty": lambda: x.new_empty(0),
        "flat": lambda: x.reshape(-1),
    }
    if x.dim() and x.shape[dim]:
        forms |= {
            "longer": lambda: torch.cat([x, x.narrow(dim, 0, 1)], dim),
            "shorter": lambda: x.narrow(dim, 0, x.shape[dim] - 1).clone(),
            "a dim less": lambda: x.select(dim, 0).clone(),
            "transposed": lambda: x.transpose(dim, dim - 1),
        }
    if x.dtype in (torch.int64, torch.int32) and x.numel():
        forms["an index"] = forms["another index"] = lambda: _with_wrong_index(x, draw)
    change = draw.choice([*forms])
    return forms[change](), change


def _with_wrong_index(x: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """Return ``x`` with one element that is out of range or counts from the end."""
    wrong = x.clone(memory_format=torch.contiguous_format)
    wrong.view(-1)[draw.randrange(x.numel())] = draw.choice((-1, -500, 1000))
    return wrong
