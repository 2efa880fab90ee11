"""What a function is called with to know the values of a run: the inputs of a case or a bundle."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from spyre.errors import LaunchError
from spyre.runtime.arguments import HostTensor, KernelArguments
from spyre.runtime.cases import Case
from spyre.runtime.program import LoweredProgram, load_source
from spyre.runtime.tracing import TracedLaunch, bundle_launches, case_launches

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Subject:
    """``inputs``: values by the names of the arguments that hold them, in order of first use.
    ``launches``: of the run. ``given``: what the compiled function calls its inputs, by argument,
    "" where that is not known; its numbers are left out.
    """

    inputs: Mapping[str, Array]
    launches: Sequence[TracedLaunch]
    given: Mapping[str, str]


def case_subject(case: Case) -> Subject:
    """A case: its input buffers, by the numbers in their names."""
    buffers = case.spec.buffers
    uploaded = {n: b.value for n, b in buffers.items() if b.kind == "input" and b.value}
    inputs = {}
    for name in sorted(uploaded, key=_natural):
        buffer = buffers[name]
        shape = buffer.shape if buffer.host.shape is None else buffer.host.shape
        inputs[name] = case.value(uploaded[name]).reshape(shape)
    launches = case_launches(case.spec, lambda name: load_source(case.directory / name))
    return Subject(inputs, launches, dict.fromkeys(inputs, ""))


def bundle_subject(
    bundle: LoweredProgram,
    arguments: KernelArguments,
    inputs: Sequence[HostTensor],
    values: Mapping[str, int],
) -> Subject:
    """A bundle: its input arguments in order. LaunchError SPY623 without a launch_spec.json."""
    launches = bundle_launches(bundle, arguments, values)
    if not launches:
        raise LaunchError(
            "SPY623",
            "without launch_spec.json nothing says where the function's values lie",
            expected="launch_spec.json beside bundle.mlir, or a case",
        )
    pairs = zip(arguments.inputs, inputs, strict=True)
    uploaded = {spec.name: tensor.to_values() for spec, tensor in pairs}
    given = {spec.name: spec.given_name for spec in arguments.inputs if spec.value is None}
    return Subject(uploaded, launches, given)


def _natural(name: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
