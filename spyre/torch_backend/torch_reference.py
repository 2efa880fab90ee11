"""Reference values of a torch function on the CPU: inputs, results of its operations, outputs.

A run on the card is compared with them, execute by execute (`spyre.diagnose`).
"""

from __future__ import annotations

import copy
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec.structs import replace
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spyre.diagnose import Deviation, FirstDivergence, ReferenceValue, is_constant, match_outputs
from spyre.errors import JsonLocation, LaunchError
from spyre.files import import_file
from spyre.hw.device import Device
from spyre.runtime.arguments import Inputs, prepare_inputs
from spyre.runtime.cases import case_directory, read_case
from spyre.runtime.compare import compare
from spyre.runtime.run import Run, RunOptions, RunResult, session_of, traced_executes

Function = Callable[..., Any]


class _Recording(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Records the results of every operation, and those of the operations that it decomposes into.

    ``values``: distinct ones with several different numbers, by shape and content.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[tuple[Any, ...], ReferenceValue] = {}
        self._of_tensors: dict[int, ReferenceValue] = {}
        self._tensors: list[torch.Tensor] = []
        self._decomposed: list[Any] = []

    def add(
        self, name: str, tensor: torch.Tensor, base: ReferenceValue | None = None
    ) -> ReferenceValue | None:
        """The value that a tensor holds; None for integers and for equal numbers, of which any
        tile matches any other. ``base``: the value that the tensor is a view of.
        """
        if tensor.numel() < 2 or not (tensor.is_floating_point() or tensor.dtype == torch.bool):
            return None
        value = ReferenceValue(name, _numbers(tensor), base, is_inner=bool(self._decomposed))
        if is_constant(value.values):
            return None
        self._tensors.append(tensor)  # its id stays its own
        value = self.values.setdefault((value.squeezed.shape, value.squeezed.tobytes()), value)
        value.is_inner &= bool(self._decomposed)
        self._of_tensors[id(tensor)] = value
        return value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        operands = [x for x in tree_leaves((args, named)) if isinstance(x, torch.Tensor)]
        known = [self._of_tensors[id(x)] for x in operands if id(x) in self._of_tensors]
        result = func(*args, **named)
        if "empty" in func.__name__:  # what the memory holds is no value
            return result
        name = str(func.overloadpacket)
        base = known[0].whole if func.is_view and known else None
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        for value in filter(None, [self.add(name, leaf, base) for leaf in results]):
            if not func.is_view:
                value.makers.append((name, tuple(each.whole for each in known)))
        if (decompose := self._decomposition(func)) is not None:
            self._decomposed.append(func)
            with self:
                decompose(*args, **named)
            self._decomposed.pop()
        return result

    def _decomposition(self, func: Any) -> Callable[..., Any] | None:
        """The decomposition of an operation without side effects, unless it is running."""
        if func._schema.is_mutable or func in self._decomposed:
            return None
        if torch.Tag.nondeterministic_seeded in func.tags:
            return None
        found: Callable[..., Any] | None = decomposition_table.get(func)
        return found


def record_values(
    function: Function, inputs: Mapping[str, np.ndarray[Any, Any]], bound: BoundInputs
) -> tuple[tuple[ReferenceValue, ...], tuple[np.ndarray[Any, Any], ...]]:
    """Reference values of ``function`` for ``inputs`` (by argument), and its outputs.

    Floats of all dtypes are computed in float32, so that the values have no
    rounding of the device. Equal values (views) are recorded once. Values in which all numbers are
    equal are left out, since any tile of them matches any other. Exceptions of the function
    propagate.
    """
    plain = {key: torch.from_numpy(np.ascontiguousarray(a)) for key, a in inputs.items()}
    return _recorded(plain, lambda tensors: bound.call(function, tensors))


def record_call(
    function: Function, names: Sequence[str], tensors: Sequence[torch.Tensor]
) -> tuple[tuple[ReferenceValue, ...], tuple[np.ndarray[Any, Any], ...]]:
    """As `record_values`, for tensors in the order of the function's parameters."""
    given = dict(zip(names, tensors, strict=True))
    return _recorded(given, lambda widened: function(*widened.values()))


def _recorded(
    inputs: Mapping[str, torch.Tensor], call: Callable[[Mapping[str, torch.Tensor]], Any]
) -> tuple[tuple[ReferenceValue, ...], tuple[np.ndarray[Any, Any], ...]]:
    tensors = {key: t.float() if t.is_floating_point() else t for key, t in inputs.items()}
    recording = _Recording()
    for name, tensor in tensors.items():
        recording.add(name, tensor)
    with torch.no_grad(), recording:
        result = call(tensors)
    outputs = tuple(_numbers(t) for t in tree_leaves(result) if isinstance(t, torch.Tensor))
    return tuple(recording.values.values()), outputs


class BoundInputs(msgspec.Struct, frozen=True):
    """The arguments of a bundle that a function is called with.

    ``positional`` and ``by_name``: for its parameters. ``members``: for parameters and buffers of a
    module, by path. ``order``: a remark for reports if the inputs are passed in order of first use,
    because their names are unknown.
    """

    positional: Sequence[str]
    by_name: Mapping[str, str] = msgspec.field(default_factory=dict)
    members: Mapping[str, str] = msgspec.field(default_factory=dict)
    order: str = ""

    def call(self, function: Function, tensors: Mapping[str, torch.Tensor]) -> Any:
        """Call the function with the tensors of the arguments."""
        args = tuple(tensors[key] for key in self.positional)
        named = {name: tensors[key] for name, key in self.by_name.items()}
        if not isinstance(function, torch.nn.Module):
            return function(*args, **named)
        state = {path: tensors[key] for path, key in self.members.items()}
        # Members that are no inputs keep their values.
        on_cpu = copy.deepcopy(function).cpu().float()
        return torch.func.functional_call(on_cpu, state, args, named)


def bind_inputs(function: Function, given: Mapping[str, str]) -> BoundInputs:
    """Match inputs to the parameters of ``function`` by name, else in order of first use.

    ``given``: the compiled function's name of each input, by argument, "" if unknown. LaunchError
    SPY623 if the function cannot be called either way.
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
    """The signature of a function or of a module's ``forward``; None if it cannot be inspected."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        return inspect.signature(called)
    except ValueError:
        return None


def _bound_by_name(
    function: Function, signature: inspect.Signature, given: Mapping[str, str]
) -> BoundInputs | None:
    """Inputs matched by name; None if an input has no name or an unknown one, or if a required
    parameter is not among the inputs.
    """
    arguments = {name: key for key, name in given.items()}
    if "" in arguments or len(arguments) < len(given):
        return None
    prefix, paths = _members(function)
    members = {path: arguments.pop(prefix + path) for path in paths if prefix + path in arguments}
    first = [n for n, p in signature.parameters.items() if p.kind is p.POSITIONAL_ONLY]
    positional = [arguments.pop(name) for name in first if name in arguments]
    try:
        signature.bind(*positional, **arguments)
    except TypeError:
        return None
    known = {n for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
    return BoundInputs(positional, arguments, members) if arguments.keys() <= known else None


def _members(function: Function) -> tuple[str, set[str]]:
    """The prefix of members in a module's ``forward``, and paths of its parameters and buffers."""
    if not isinstance(function, torch.nn.Module):
        return "", set()
    self_name = next(iter(inspect.signature(type(function).forward).parameters))
    parameters = function.named_parameters(remove_duplicate=False)
    buffers = function.named_buffers(remove_duplicate=False)
    return f"{self_name}.", {path for path, _ in (*parameters, *buffers)}


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


def divergence_search(function: Function, run: Run) -> FirstDivergence:
    """An observer that finds the first execute that deviates from ``function``.

    The function is called with the inputs of the run in the order of the numbers in their names,
    which is the order of their first use. LaunchError SPY623 if it cannot be called with them, or
    for a bundle without launch_spec.json.
    """
    if run.is_derived:
        raise LaunchError(
            "SPY623",
            "without launch_spec.json the layouts of the function's values are unknown",
            expected="launch_spec.json beside bundle.mlir, or a case",
        )
    inputs = {name: b for name, b in run.buffers.items() if b.is_input and b.content is not None}
    parts = {name: re.split(r"(\d+)", name) for name in inputs}
    order = {n: [int(p) if p.isdigit() else p for p in row] for n, row in parts.items()}
    inputs = dict(sorted(inputs.items(), key=lambda pair: order[pair[0]]))
    names = {
        name: buffer.spec.given_name
        for name, buffer in inputs.items()
        if buffer.spec is not None and buffer.spec.value is None
    }
    bound = bind_inputs(function, names)
    arrays = {name: buffer.function_input for name, buffer in inputs.items()}
    values, outputs = record_values(function, arrays, bound)
    left_out = [
        f.location.file
        for f in run.findings
        if isinstance(f.location, JsonLocation) and f.code == "SPY277"
    ]
    return FirstDivergence(
        values,
        frozenset(inputs),
        traced_executes(run),
        bound.order,
        outputs,
        ", ".join(Path(file).name for file in left_out),
    )


def first_wrong(
    path: str | os.PathLike[str],
    function: Function,
    inputs: Inputs = None,
    *,
    device: Device | None = None,
) -> Deviation | None:
    """The first execute of a bundle or case that deviates from the results of ``function``.

    ``function``: takes the inputs as CPU tensors (floats in float32), by the names that the
    compiled function has for them. If these are unknown or differ, it gets the inputs in order of
    their first use. A module gets its parameters and buffers too. Other parameters keep their
    defaults. ``inputs``: of a bundle, as for `spyre.run`; a case has recorded ones. Returns None if
    the outputs are right, or if no execute is known to be wrong. Errors as of `spyre.run`, and
    LaunchError SPY623 for a bundle without launch_spec.json.
    """
    session = session_of(device if device is not None else Device())
    directory = case_directory(path)
    if directory is not None and inputs is None:
        run = session.describe(read_case(directory))
        run = replace(run, outputs=tuple(replace(o, expected=None) for o in run.outputs))
    else:
        run = session.describe(path)
        run = run.with_inputs(prepare_inputs(run.inputs, inputs, 0))
    search = divergence_search(function, run)
    result = session.execute(run, RunOptions(observers=[search]))
    expected = match_outputs(result.outputs, search.outputs)
    search.check_outputs(result.output_tensors, result.places, expected)
    return search.found if _differs(result, expected) else None


def agrees(found: Sequence[torch.Tensor], expected: Sequence[np.ndarray[Any, Any]]) -> bool:
    """True if results are the expected ones, within the tolerance of reference values."""
    arrays = [_numbers(tensor) for tensor in found]
    return len(arrays) == len(expected) and all(
        a.shape == b.shape and compare(a, b, ReferenceValue("", b).tolerance).ok
        for a, b in zip(arrays, expected, strict=True)
    )


def _differs(result: RunResult, expected: Mapping[int, np.ndarray[Any, Any]]) -> bool:
    return any(
        not compare(result.outputs[k], values, ReferenceValue("", values).tolerance).ok
        for k, values in expected.items()
        if result.outputs[k].shape == values.shape
    )


def _numbers(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    plain = tensor.detach().float() if tensor.is_floating_point() else tensor.detach()
    array: np.ndarray[Any, Any] = plain.contiguous().numpy().copy()
    return array


def load_function(text: str) -> Function:
    """The function named by ``torch:FILE.py:NAME``.

    LaunchError SPY623 if the file or the function does not exist; exceptions of the file propagate.
    """
    kind, _, rest = text.partition(":")
    file, _, name = rest.rpartition(":")
    if kind != "torch" or not file.endswith(".py") or not name:
        raise _refusal("the expected function is not given as torch:FILE.py:NAME", text)
    if not Path(file).is_file():
        raise _refusal(f"there is no file {file}", text)
    module = import_file(file, "spyre_expected")
    function = getattr(module, name, None)
    if not callable(function):
        raise _refusal(f"{file} has no function {name}", text)
    return function  # type: ignore[no-any-return]


def _refusal(message: str, found: str) -> LaunchError:
    return LaunchError("SPY623", message, expected="torch:FILE.py:NAME", found=found)
