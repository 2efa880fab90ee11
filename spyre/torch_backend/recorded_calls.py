"""Calls of compiled functions, recorded so that a failed test can name the first wrong execute.

While `recording` is active, a function that is compiled notes its inputs and results at each call,
and each of its kernels the program and its inputs, all copied to the CPU. `explanation` runs the
programs again beside the function.
"""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.utils._pytree import tree_leaves

from spyre.mlir.bundle import write_bundle

if TYPE_CHECKING:
    from spyre.mlir.builder import BuiltBundle

MOST_BYTES = 64 << 20
"""Bytes of tensors that are copied in one recording; calls after that are not recorded."""


class KernelLaunch(msgspec.Struct, frozen=True):
    """A launch: its program with launch_spec.json, inputs by arg_index, sizes known at launches."""

    bundle: BuiltBundle
    inputs: Mapping[int, torch.Tensor]
    sizes: Mapping[str, int]


class CompiledCall(msgspec.Struct):
    """A call of a compiled function. ``model``: its graph. ``results``: its tensors."""

    model: torch.fx.GraphModule
    inputs: Sequence[Any]
    launches: list[KernelLaunch] = msgspec.field(default_factory=list)
    results: Sequence[torch.Tensor] = ()


class CallRecorder:
    """The finished calls, in order; ``current``: the one that is running."""

    def __init__(self) -> None:
        self.calls: list[CompiledCall] = []
        self.current: CompiledCall | None = None
        self._left = MOST_BYTES

    def copied(self, values: Sequence[Any]) -> list[Any] | None:
        """The values with their tensors copied to the CPU; None if that would be too much."""
        self._left -= sum(t.nbytes for t in values if isinstance(t, torch.Tensor))
        if self._left < 0:
            return None
        return [t.detach().cpu() if isinstance(t, torch.Tensor) else t for t in values]

    def launched(
        self, bundle: BuiltBundle, inputs: Mapping[int, torch.Tensor], sizes: Mapping[str, int]
    ) -> None:
        """Record a launch that is about to be enqueued, if a call is running."""
        copies = None if self.current is None else self.copied([*inputs.values()])
        if self.current is not None and copies is not None:
            given = dict(zip(inputs, copies, strict=True))
            self.current.launches.append(KernelLaunch(bundle, given, sizes))


_recorder: CallRecorder | None = None


def recorder_of_launch() -> CallRecorder | None:
    """The recorder, while it records a call."""
    return _recorder if _recorder is not None and _recorder.current is not None else None


@contextmanager
def recording() -> Iterator[CallRecorder]:
    """Record the calls of functions that are compiled in such a block, on any thread."""
    global _recorder
    before, _recorder = _recorder, CallRecorder()
    try:
        yield _recorder
    finally:
        _recorder = before


def recorded(model: Any, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """``compiled``, or while functions are recorded a function that also notes its calls.

    ``model``: the graph that it was compiled from, on the CPU (`on_cpu`), or None.
    """
    if model is None:
        return compiled

    @functools.wraps(compiled)
    def call(*args: Any) -> Any:
        recorder = _recorder
        if recorder is None or recorder.current is not None:  # Inductor compiles some graphs twice
            return compiled(*args)
        boxed = len(args) == 1 and isinstance(args[0], list)
        inputs = recorder.copied(args[0] if boxed else args)
        if inputs is None:
            return compiled(*args)
        recorded_call = recorder.current = CompiledCall(model, inputs)
        try:
            result = compiled(*args)
        finally:
            recorder.current = None
        results = recorder.copied([x for x in tree_leaves(result) if isinstance(x, torch.Tensor)])
        if results is not None:
            recorded_call.results = results
            recorder.calls.append(recorded_call)
        return result

    return call


def on_cpu(model: Any) -> Any:
    """A copy of a graph that computes on the CPU; None unless functions are recorded."""
    if _recorder is None or not isinstance(model, torch.fx.GraphModule):
        return None
    copied = copy.deepcopy(model).cpu().float()
    cpu = torch.device("cpu")
    for node in copied.graph.nodes:
        given = torch.fx.node.map_aggregate(
            (node.args, node.kwargs), lambda x: cpu if isinstance(x, torch.device) else x
        )
        node.args, node.kwargs = given
    copied.recompile()
    return copied


def explanation(calls: Sequence[CompiledCall]) -> str:
    """The first wrong execute of the first call whose results are wrong, as text."""
    for number, call in enumerate(calls, 1):
        text = _explained(call)
        if text:
            return f"call {number} of {len(calls)} of compiled functions:\n{text}"
    return "every call of a compiled function gave the results of the CPU"


def _explained(call: CompiledCall) -> str:
    """The first wrong execute; "" if the results are those of the CPU."""
    from spyre.torch_backend.torch_reference import agrees, record_call

    places = [k for k, value in enumerate(call.inputs) if isinstance(value, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> Any:
        given = list(call.inputs)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        return call.model(*given)

    tensors = [call.inputs[k] for k in places]
    names = [f"input {k}" for k in places]
    _, outputs = record_call(function, names, tensors)
    if agrees(call.results, outputs):
        return ""
    for launch in call.launches:
        own = [_name_of(tensor, launch.inputs) for tensor in tensors]
        chosen = [mine or name for mine, name in zip(own, names, strict=True)]
        values, _ = record_call(function, chosen, tensors)
        found = _first_wrong(launch, values, outputs if launch is call.launches[-1] else ())
        if found:
            return found
    return "its results are not those of the CPU, and no execute is known to be wrong"


def _name_of(tensor: torch.Tensor, inputs: Mapping[int, torch.Tensor]) -> str:
    """Name of the kernel's argument that has the function's input; "" if there is none."""
    from spyre.runtime.arguments import argument_name

    found = (k for k, own in inputs.items() if own.shape == tensor.shape and own.equal(tensor))
    return next(map(argument_name, found), "")


def _first_wrong(launch: KernelLaunch, values: Any, outputs: Any) -> str:
    """The first wrong execute of a launch; "" if none is known."""
    from spyre.diagnose import FirstDivergence, map_lines, match_outputs
    from spyre.hw.device import Device
    from spyre.runtime.arguments import prepare_inputs
    from spyre.runtime.run import RunOptions, Session, traced_executes

    session = Session(Device())
    with tempfile.TemporaryDirectory() as directory:
        write_bundle(launch.bundle, directory)
        run = session.describe(directory, RunOptions(values=launch.sizes, check=False))
        inputs: dict[str | int, Any] = {k: _array(t) for k, t in launch.inputs.items()}
        run = run.with_inputs(prepare_inputs(run.inputs, inputs, 0))
        uploaded = frozenset(spec.name for spec in run.inputs)
        search = FirstDivergence(values, uploaded, traced_executes(run), outputs=outputs)
        result = session.execute(run, RunOptions(observers=[search]))
        expected = match_outputs(result.outputs, outputs)
        search.check_outputs(result.output_tensors, result.places, expected)
    if search.found is None:
        return ""
    text = "\n".join([str(search.found.to_finding()), *map_lines(search.found)])
    return text.replace(f"{directory}/", "")


def _array(tensor: torch.Tensor) -> Any:
    wide = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    return wide.contiguous().numpy()
