"""The values of a torch function on the CPU: inputs, results of its operations, outputs.

What a run on the card is compared with, execute by execute (`spyre.runtime.expect`).
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spyre.diagnose import possible_causes
from spyre.errors import LaunchError
from spyre.hw.device import Device
from spyre.runtime.arguments import Inputs, prepare_inputs
from spyre.runtime.cases import case_directory, read_case
from spyre.runtime.compare import compare
from spyre.runtime.expect import (
    Deviation,
    FirstWrong,
    KnownValue,
    Subject,
    bundle_subject,
    case_subject,
    is_constant,
    placed_outputs,
    watched,
)
from spyre.runtime.run import RunOptions, RunResult, run_case, session_of

Function = Callable[..., Any]


class _Recording(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Keeps what every operation returns."""

    def __init__(self, known: list[KnownValue]) -> None:
        super().__init__()
        self.known = known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel() > 1:
                self.known.append(KnownValue(str(func.overloadpacket), _numbers(leaf)))
        return result


def record_values(
    function: Function, inputs: Mapping[str, np.ndarray[Any, Any]], bound: BoundInputs
) -> tuple[tuple[KnownValue, ...], tuple[np.ndarray[Any, Any], ...]]:
    """Known values of ``function`` over ``inputs``, by argument, and its outputs.

    Floats are computed in float32, whatever the inputs have: what the function means, without its
    rounding. Values that are equal (views) are kept once, those of one number not at all: any tile
    of it would be like any other. Exceptions of the function propagate.
    """
    plain = {key: torch.from_numpy(np.ascontiguousarray(a)) for key, a in inputs.items()}
    tensors = {key: t.float() if t.is_floating_point() else t for key, t in plain.items()}
    floats = {key: t for key, t in tensors.items() if t.is_floating_point()}
    known = [KnownValue(name, _numbers(t)) for name, t in floats.items()]
    with torch.no_grad(), _Recording(known):
        result = bound.call(function, tensors)
    outputs = tuple(_numbers(t) for t in tree_leaves(result) if isinstance(t, torch.Tensor))
    telling = [value for value in known if not is_constant(value.values)]
    distinct = {(v.squeezed.shape, v.squeezed.tobytes()): v for v in reversed(telling)}
    return tuple(reversed(distinct.values())), outputs


@dataclass(frozen=True)
class BoundInputs:
    """Which arguments of a bundle a function is called with: by position, by name and, of a module,
    for its parameters and buffers, by path. ``order``: says so where they are taken in order of
    first use, for want of names.
    """

    by_place: Sequence[str]
    by_name: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)
    order: str = ""

    def call(self, function: Function, tensors: Mapping[str, torch.Tensor]) -> Any:
        """The function over the tensors of the arguments."""
        args = tuple(tensors[key] for key in self.by_place)
        named = {name: tensors[key] for name, key in self.by_name.items()}
        if not isinstance(function, torch.nn.Module):
            return function(*args, **named)
        state = {path: tensors[key] for path, key in self.members.items()}
        # what inputs do not replace keeps its values
        own = copy.deepcopy(function).cpu().float()
        return torch.func.functional_call(own, state, args, named)


def bound_inputs(function: Function, given: Mapping[str, str]) -> BoundInputs:
    """By the names that the compiled function has for its inputs, where the function given here
    has them too; else in order of first use.

    ``given``: names by argument. LaunchError SPY623 where neither is possible.
    """
    signature = _signature(function)
    if signature is not None and (named := _bound_by_name(function, signature, given)) is not None:
        return named
    takes: Mapping[str, object] = {}
    if signature is not None:
        try:
            takes = signature.bind(*given).arguments
        except TypeError as error:
            raise _unbound(signature, given) from error
    return BoundInputs(tuple(given), order=_order_text(given, list(takes)))


def _signature(function: Function) -> inspect.Signature | None:
    """Of a module that of its ``forward``; None of a function that does not tell."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        return inspect.signature(called)
    except ValueError:
        return None


def _bound_by_name(
    function: Function, signature: inspect.Signature, given: Mapping[str, str]
) -> BoundInputs | None:
    """None where an input has no name, or one that the function does not know, or where one that
    the function needs is none of them.
    """
    arguments = {name: key for key, name in given.items()}
    if "" in arguments or len(arguments) < len(given):
        return None
    prefix, paths = _members(function)
    members = {path: arguments.pop(prefix + path) for path in paths if prefix + path in arguments}
    first = [n for n, p in signature.parameters.items() if p.kind is p.POSITIONAL_ONLY]
    by_place = [arguments.pop(name) for name in first if name in arguments]
    try:
        signature.bind(*by_place, **arguments)
    except TypeError:
        return None
    known = {n for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
    return BoundInputs(by_place, arguments, members) if arguments.keys() <= known else None


def _members(function: Function) -> tuple[str, set[str]]:
    """What ``forward`` has before the paths of a module's parameters and buffers, and these."""
    if not isinstance(function, torch.nn.Module):
        return "", set()
    own = next(iter(inspect.signature(type(function).forward).parameters))
    parameters = function.named_parameters(remove_duplicate=False)
    buffers = function.named_buffers(remove_duplicate=False)
    return f"{own}.", {path for path, _ in (*parameters, *buffers)}


def _order_text(given: Mapping[str, str], names: Sequence[str]) -> str:
    if len(given) < 2:
        return ""
    if len(names) != len(given):
        names = [f"input {k}" for k in range(len(given))]
    pairs = ", ".join(f"{name} is {key}" for key, name in zip(given, names, strict=True))
    return f"the function was given the inputs in order of first use: {pairs}"


def _unbound(signature: inspect.Signature, given: Mapping[str, str]) -> LaunchError:
    inputs = ", ".join(f"{key} ({name})" if name else key for key, name in given.items())
    return LaunchError(
        "SPY623",
        "the function does not take the inputs of the bundle",
        expected=f"a function of {inputs}",
        found=f"parameters {signature}",
    )


def watcher_of(
    function: Function, subject: Subject
) -> tuple[FirstWrong, tuple[np.ndarray[Any, Any], ...]]:
    """What finds the first execute that deviates from ``function``, and the function's outputs.

    LaunchError SPY623 where the function cannot be called with the inputs.
    """
    bound = bound_inputs(function, subject.given)
    known, outputs = record_values(function, subject.inputs, bound)
    launches = subject.launches
    uploaded = frozenset(subject.inputs)
    return FirstWrong(known, uploaded, launches, possible_causes, bound.order), outputs


def first_wrong(
    path: str | os.PathLike[str],
    function: Function,
    inputs: Inputs = None,
    *,
    device: Device | None = None,
) -> Deviation | None:
    """The first execute of a bundle or case that deviates from what ``function`` computes.

    ``function``: takes the inputs as CPU tensors (floats in float32), by the names that the
    compiled function has for them, or, where the bundle has none or others, in order of first use;
    a module its parameters and buffers too. Other parameters keep their defaults. ``inputs``: of a
    bundle, as `spyre.run` takes them; a case has its own. None: the outputs are right, or no
    execute is known to be wrong. Errors as of `spyre.run`, and LaunchError SPY623 for a bundle
    without launch_spec.json.
    """
    used = device if device is not None else Device()
    directory = case_directory(path)
    if directory is not None and inputs is None:
        case = read_case(directory)
        watcher, outputs = watcher_of(function, case_subject(case))
        result = run_case(case, used, runner=watched([watcher])).result
    else:
        session = session_of(used)
        prepared = session.prepare(path)
        arguments = prepared.arguments(RunOptions())
        tensors = prepare_inputs(arguments.inputs, inputs, 0)
        subject = bundle_subject(prepared.bundle, arguments, tensors, {})
        watcher, outputs = watcher_of(function, subject)
        options = RunOptions(runner=watched([watcher]))
        result = session.launch(prepared, arguments, tensors, options)
    expected = placed_outputs(result.outputs, outputs)
    watcher.judge_outputs(result.output_tensors, result.places, expected)
    return watcher.found if _differs(result, expected) else None


def _differs(result: RunResult, expected: Mapping[int, np.ndarray[Any, Any]]) -> bool:
    return any(
        not compare(result.outputs[k], values, KnownValue("", values).tolerance).ok
        for k, values in expected.items()
        if result.outputs[k].shape == values.shape
    )


def _numbers(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    plain = tensor.detach().float() if tensor.is_floating_point() else tensor.detach()
    array: np.ndarray[Any, Any] = plain.contiguous().numpy().copy()
    return array


def load_function(text: str) -> Function:
    """The function that ``torch:FILE.py:NAME`` names.

    LaunchError SPY623 where the file or the function is not there; what the file raises propagates.
    """
    kind, _, place = text.partition(":")
    file, _, name = place.rpartition(":")
    if kind != "torch" or not file or not name:
        raise _refusal("the function to expect is not given as torch:FILE.py:NAME", text)
    if not Path(file).is_file():
        raise _refusal(f"there is no file {file}", text)
    spec = importlib.util.spec_from_file_location("spyre_expected", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise _refusal(f"{file} has no function {name}", text)
    return function  # type: ignore[no-any-return]


def _refusal(message: str, found: str) -> LaunchError:
    return LaunchError("SPY623", message, expected="torch:FILE.py:NAME", found=found)
