"""From a run of one bundle to the case that repeats it: same values, places, tolerances.

``spyre-run --dump`` records a run with this and writes it with :mod:`.case_writer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.runtime.arguments import (
    ArgumentSpec,
    HostTensor,
    KernelArguments,
    given_launch_spec,
    spec_of_arguments,
)
from spyre.runtime.cases.case import (
    POOL_BUFFER,
    Case,
    CaseBuffer,
    CaseFile,
    CaseLaunch,
    CaseOutput,
    CaseTolerance,
)
from spyre.runtime.compare import Tolerance
from spyre.runtime.program import LAUNCH_SPEC_FILE, LayoutSpec, LoweredBundle, format_launch_spec

_EXACT = CaseTolerance(0.0, 0.0)


@dataclass(frozen=True)
class RecordedRun:
    """What was run.

    ``inputs``: one per input argument. ``expected``: one per output argument with its tolerance,
    or none at all. ``values``: of parameters and runtime sizes. ``options``: those of the command
    line that a replay needs.
    """

    bundle: LoweredBundle
    arguments: KernelArguments
    inputs: Sequence[HostTensor]
    expected: Sequence[HostTensor] = ()
    tolerances: Sequence[Tolerance] = ()
    values: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def record_case(run: RecordedRun) -> Case:
    """The case whose replay places, launches and compares as the run did."""
    arguments, program = run.arguments, run.bundle.program
    baked = not program.parameters
    buffers: dict[str, CaseBuffer] = {}
    if arguments.pool_bytes:
        buffers[POOL_BUFFER] = CaseBuffer("pool", arguments.pool_bytes, region=0 if baked else None)
    first = len(buffers)
    for spec in arguments.arguments:
        region = spec.arg_index + first if baked else None
        buffers[spec.name] = _buffer(spec, region, None)
    for spec, target in arguments.aliases:
        name = next(a.name for a in arguments.arguments if a.arg_index == target)
        buffers[spec.name] = _buffer(spec, None, name)
    names = {parameter.name for parameter in program.parameters}
    values = {name: value for name, value in run.values.items() if name in names}
    outputs = tuple(_output(run, k, spec) for k, spec in enumerate(arguments.outputs))
    case = CaseFile(
        run.bundle.directory.resolve().name,
        _EXACT,
        buffers,
        (_launch(arguments, first, values),),
        outputs,
        dict(run.options),
    )
    return Case(run.bundle.directory, case, _arrays(run), {})


def _launch(arguments: KernelArguments, pools: int, values: dict[str, int]) -> CaseLaunch:
    specs = [*arguments.arguments, *(spec for spec, _ in arguments.aliases)]
    names = (*[POOL_BUFFER] * pools, *(spec.name for spec in specs))
    indices = (*[-1] * pools, *(spec.arg_index for spec in specs))
    return CaseLaunch(".", names, indices, values)


def _buffer(spec: ArgumentSpec, region: int | None, alias_of: str | None) -> CaseBuffer:
    return CaseBuffer(
        kind=spec.role.value,
        nbytes=spec.layout.device_bytes,
        dtype=spec.dtype_name,
        shape=spec.shape,
        stride=spec.strides,
        layout=LayoutSpec.of(spec.layout),
        dma_sizes=spec.shape,
        dma_strides=spec.strides,
        value=spec.name if spec.is_input and alias_of is None else None,
        region=region,
        alias_of=alias_of,
    )


def _output(run: RecordedRun, k: int, spec: ArgumentSpec) -> CaseOutput:
    tolerance = None
    if run.expected:
        chosen = run.tolerances[k]
        tolerance = CaseTolerance(chosen.atol, chosen.rtol, chosen.merged_nan)
    return CaseOutput(
        spec.name,
        spec.name if run.expected else None,
        spec.shape,
        spec.strides,
        0,
        spec.dtype_name,
        spec.dtype_name,
        tolerance,
    )


def _arrays(run: RecordedRun) -> dict[str, npt.NDArray[Any]]:
    arguments = run.arguments
    arrays = {
        spec.name: tensor.to_array()
        for spec, tensor in zip(arguments.inputs, run.inputs, strict=True)
    }
    for spec, tensor in zip(arguments.outputs, run.expected, strict=False):
        arrays[f"expect_{spec.name}"] = np.asarray(tensor.to_values())
    return arrays


def launch_spec_file(bundle: LoweredBundle, arguments: KernelArguments) -> dict[str, bytes]:
    """The launch_spec.json of a bundle that has none, from what it was launched with."""
    if given_launch_spec(bundle) is not None:
        return {}
    symbolic = bool(bundle.program.parameters)
    spec = spec_of_arguments(arguments, bundle.directory.resolve().name, symbolic)
    return {LAUNCH_SPEC_FILE: format_launch_spec(spec).encode()}
