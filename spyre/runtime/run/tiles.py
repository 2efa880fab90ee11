"""A KTIR program with its arguments as a `Run`: bound, traced, placed like any other.

Pointers are tensors, row major as the host has them; numbers are values of the trace. The memory of
the constants is one more argument, written as raw bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import codes_to_bytes, decode_device, encode_device
from spyre.errors import Finding, LaunchError, Severity, ValidationError
from spyre.hw.numerics import Numerics
from spyre.hw.spec import STICK_BYTES
from spyre.hw.tiles import PointerArgument, TracedKernel, trace_function
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.lru_cache import LruCache
from spyre.mlir.tiles import KtirArgument, KtirProgram
from spyre.runtime.arguments import ArgumentSpec, HostTensor
from spyre.runtime.program import Role
from spyre.runtime.run.runs import Run, RunBuffer, RunLaunch, RunOutput

Array = npt.NDArray[Any]
ELEMENTS = {
    "float16": "f16", "float32": "f32", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "bool": "i1",
}  # fmt: skip
HOST_DTYPES = {element: dtype for dtype, element in ELEMENTS.items()} | {"!spyreop.df16": "float16"}
HALF, SINGLE = "SEN169_FP16", "IEEE_FP32"
CONSTANTS = "constants"
MOST_TRACED = 64


@dataclass(frozen=True, eq=False)
class TilePointer:
    """A pointer argument with its memory. ``tensor`` None: memory that is only stored to."""

    argument: KtirArgument
    shape: tuple[int, ...]
    dtype_name: str
    tensor: HostTensor | None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


def bind_arguments(
    program: KtirProgram, function: str | None, given: Mapping[str, HostTensor | float]
) -> tuple[dict[str, TilePointer], dict[str, float]]:
    """Pointers and numbers by name. LaunchError SPY342 for one that is missing or unknown."""
    arguments = {a.name: a for a in program.arguments(function)}
    expected = ", ".join(arguments) or "no arguments"
    if unknown := [name for name in given if name not in arguments]:
        raise LaunchError(
            "SPY342", f"there is no argument {unknown[0]}", expected=expected, found=unknown[0]
        )
    pointers: dict[str, TilePointer] = {}
    numbers: dict[str, float] = {}
    for name, argument in arguments.items():
        value = given.get(name)
        if not argument.is_pointer:
            if not isinstance(value, Real):
                raise _missing(program, argument, "a number")
            numbers[name] = float(value) if isinstance(value, float) else int(value)
        elif isinstance(value, HostTensor):
            pointers[name] = TilePointer(argument, value.shape, value.dtype_name, value)
        elif value is None and argument.is_stored and not argument.is_read and argument.shape:
            dtype = HOST_DTYPES.get(argument.element, "float32")
            pointers[name] = TilePointer(argument, argument.shape, dtype, None)
        else:
            raise _missing(program, argument, "an array")
    return pointers, numbers


def _missing(program: KtirProgram, argument: KtirArgument, what: str) -> LaunchError:
    kind = f"{argument.element} at an address" if argument.is_pointer else argument.element
    return LaunchError(
        "SPY342", f"argument {argument.name} needs {what}", program.module.locate(0),
        expected=f"{argument.name}: {kind}", found="nothing of the kind",
    )  # fmt: skip


class TileTraces:
    """Functions traced before, by program, function, numbers and sizes of the pointers."""

    def __init__(self) -> None:
        # With its module, so that no other module takes the identity in the key.
        self._kept: LruCache[object, tuple[object, TracedKernel]] = LruCache(MOST_TRACED)

    def trace(
        self,
        program: KtirProgram,
        function: str | None,
        pointers: Mapping[str, TilePointer],
        numbers: Mapping[str, float],
        numerics: Numerics,
    ) -> TracedKernel:
        """The function's statements for these arguments."""
        sizes = tuple((name, p.dtype_name, p.elements) for name, p in pointers.items())
        key = (id(program.module), function, sizes, tuple(numbers.items()), str(numerics))
        return self._kept.get_or_make(
            key,
            lambda: (program.module, _trace(program, function, pointers, numbers, numerics)),
        )[1]


def _trace(
    program: KtirProgram,
    function: str | None,
    pointers: Mapping[str, TilePointer],
    numbers: Mapping[str, float],
    numerics: Numerics,
) -> TracedKernel:
    def half(values: Array) -> Array:
        codes = encode_device(values, HALF, numerics.alu_rules)
        return np.asarray(decode_device(codes, HALF, numerics.alu_rules))

    known = {
        name: PointerArgument(name, ELEMENTS.get(p.dtype_name, p.dtype_name), p.elements)
        for name, p in pointers.items()
    }
    source = program.module.source
    file = Path("text.ktir" if source is None else source.file)
    return trace_function(program, program.function(function), known, numbers, half, file)


def describe_tiles(
    program: KtirProgram,
    given: Mapping[str, HostTensor | float],
    function: str | None,
    numerics: Numerics,
    traces: TileTraces,
    check: bool = True,
) -> Run:
    """The run of one function. ValidationError for a text with errors, LaunchErrors of arguments
    and of the trace, UnsupportedError for what is not simulated.
    """
    findings = program.check() if check else ()
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise ValidationError(findings)
    pointers, numbers = bind_arguments(program, function, given)
    traced = traces.trace(program, function, pointers, numbers, numerics)
    return _run(program, traced, pointers, numerics, findings)


def _run(
    program: KtirProgram,
    traced: TracedKernel,
    pointers: Mapping[str, TilePointer],
    numerics: Numerics,
    findings: tuple[Finding, ...],
) -> Run:
    buffers, outputs = {}, []
    for k, (name, pointer) in enumerate(pointers.items()):
        spec = _spec(k, name, pointer)
        content = None if pointer.tensor is None else partial(_flat, pointer.tensor, name)
        buffers[name] = RunBuffer(
            name, spec.layout.device_bytes, spec, content=content, is_input=content is not None
        )
        if pointer.argument.is_stored:
            view = (pointer.shape, contiguous_strides(pointer.shape), 0)
            outputs.append(RunOutput(name, view, pointer.dtype_name))
    count = max(len(traced.constants), 1)
    layout = SpyreTensorLayout.from_host((count * STICK_BYTES // 4,), "float32")
    spec = ArgumentSpec(
        len(pointers), CONSTANTS, Role.INPUT, (count * STICK_BYTES // 4,), "float32", layout, (1,)
    )
    image = partial(_constants, traced.constants, numerics)
    buffers[CONSTANTS] = RunBuffer(CONSTANTS, layout.device_bytes, spec, image=image)
    by_index = dict(enumerate(buffers))
    launch = RunLaunch(traced, by_index, {})
    found = (*findings, *traced.findings)
    return Run(traced.file.stem, buffers, (launch,), tuple(outputs), found, is_derived=True)


def _spec(index: int, name: str, pointer: TilePointer) -> ArgumentSpec:
    flat = (max(pointer.elements, 1),)
    layout = SpyreTensorLayout.from_host(flat, pointer.dtype_name)
    role = Role.OUTPUT if pointer.tensor is None else (
        Role.INPUT_OUTPUT if pointer.argument.is_stored else Role.INPUT
    )  # fmt: skip
    return ArgumentSpec(index, name, role, flat, pointer.dtype_name, layout, (1,))


def _flat(tensor: HostTensor, name: str) -> HostTensor:
    """The elements row by row, as the pointer's memory holds them."""
    return HostTensor.from_array(name, tensor.to_array().reshape(-1), tensor.dtype_name)


def _constants(constants: tuple[tuple[str, float], ...], numerics: Numerics) -> Array:
    """The bytes of the constants: a stick of equal numbers each."""
    sticks = [np.zeros(STICK_BYTES, np.uint8)] if not constants else []
    for element, value in constants:
        name = SINGLE if element == "f32" else HALF
        codes = encode_device(np.array([value], np.float32), name, numerics.alu_rules)
        encoded = codes_to_bytes(codes, name)
        sticks.append(np.tile(encoded, STICK_BYTES // encoded.size))
    return np.concatenate(sticks)


def given_values(inputs: Mapping[str, Any]) -> dict[str, HostTensor | float]:
    """Arrays as host tensors, numbers as they are."""
    found: dict[str, HostTensor | float] = {}
    for name, value in inputs.items():
        if isinstance(value, HostTensor | int | float | np.number) or np.ndim(value) == 0:
            found[name] = value if isinstance(value, HostTensor) else np.asarray(value).item()
        else:
            found[name] = HostTensor.from_array(name, np.asarray(value))
    return found
