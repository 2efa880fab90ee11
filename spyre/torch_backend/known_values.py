"""The values of a torch function on the CPU: inputs, results of its operations, outputs.

What a run on the card is compared with, execute by execute (`spyre.runtime.expect`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
    function: Function, inputs: Sequence[np.ndarray[Any, Any]], names: Sequence[str]
) -> tuple[tuple[KnownValue, ...], tuple[np.ndarray[Any, Any], ...]]:
    """Known values of ``function`` over ``inputs`` (called ``names``), and its outputs.

    Floats are computed in float32, whatever the inputs have: what the function means, without its
    rounding. Values that are equal (views) are kept once, those of one number not at all: any tile
    of it would be like any other. Exceptions of the function propagate.
    """
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in inputs]
    tensors = [t.float() if t.is_floating_point() else t for t in tensors]
    floats = zip(names, tensors, strict=True)
    known = [KnownValue(name, _numbers(t)) for name, t in floats if t.is_floating_point()]
    with torch.no_grad(), _Recording(known):
        result = function(*tensors)
    outputs = tuple(_numbers(t) for t in tree_leaves(result) if isinstance(t, torch.Tensor))
    telling = [value for value in known if not is_constant(value.values)]
    distinct = {(v.squeezed.shape, v.squeezed.tobytes()): v for v in reversed(telling)}
    return tuple(reversed(distinct.values())), outputs


def watcher_of(
    function: Function, subject: Subject
) -> tuple[FirstWrong, tuple[np.ndarray[Any, Any], ...]]:
    """What finds the first execute that deviates from ``function``, and the function's outputs."""
    inputs = subject.inputs
    known, outputs = record_values(function, list(inputs.values()), list(inputs))
    return FirstWrong(known, frozenset(inputs), subject.launches), outputs


def first_wrong(
    path: str | os.PathLike[str],
    function: Function,
    inputs: Inputs = None,
    *,
    device: Device | None = None,
) -> Deviation | None:
    """The first execute of a bundle or case that deviates from what ``function`` computes.

    ``function``: takes the inputs, in order, as CPU tensors (floats in float32). ``inputs``: of a
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
    watcher.judge_outputs(result.output_tensors, result.places, outputs)
    return watcher.found if _differs(result, outputs) else None


def _differs(result: RunResult, outputs: Sequence[np.ndarray[Any, Any]]) -> bool:
    pairs = zip(result.outputs, outputs, strict=False)
    return any(
        not compare(found, values, KnownValue("", values).tolerance).ok
        for found, values in pairs
        if found.shape == values.shape
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
