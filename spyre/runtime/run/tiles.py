"""A KTIR program with its arguments as a `Run`: bound, traced, placed like any other.

Pointers are tensors, row major as the host has them; numbers are values of the trace. The memory of
the constants is one more argument, written as raw bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import codes_to_bytes, decode_device, encode_device
from spyre.errors import Finding, LaunchError, Severity, ValidationError
from spyre.hw.numerics import Numerics
from spyre.hw.spec import STICK_BYTES
from spyre.hw.tiles import FORMATS, PointerArgument, TracedKernel, trace_function
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
HALF = FORMATS["f16"]
CONSTANTS = "constants"
MOST_TRACED = 64
"""Kept traces of a session."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TilePointer(PointerArgument):
    """A pointer argument with its memory. ``tensor`` None: memory that is only stored to."""

    shape: tuple[int, ...]
    dtype_name: str
    tensor: HostTensor | None = None
    is_stored: bool = True

    @classmethod
    def of(cls, name: str, tensor: HostTensor, **others: Any) -> TilePointer:
        """The memory of an array."""
        return cls.empty(name, tensor.shape, tensor.dtype_name, tensor=tensor, **others)

    @classmethod
    def empty(
        cls, name: str, shape: tuple[int, ...], dtype_name: str, **others: Any
    ) -> TilePointer:
        """Memory for elements of a host dtype."""
        element, count = ELEMENTS.get(dtype_name, dtype_name), prod(shape)
        return cls(name, element, count, shape=shape, dtype_name=dtype_name, **others)


def bind_arguments(
    program: KtirProgram, function: str | None, given: Mapping[str, HostTensor | float]
) -> tuple[dict[str, TilePointer], dict[str, float]]:
    """Pointers and numbers by name. LaunchError SPY342 for one that is missing or unknown."""
    places = {name: value for name, value in given.items() if name.startswith("@")}
    given = {name: value for name, value in given.items() if name not in places}
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
        if not argument.is_pointer or isinstance(value, Real):
            if not isinstance(value, Real):
                raise _missing(program, argument, "a number")
            numbers[name] = float(value) if isinstance(value, float) else int(value)
        elif isinstance(value, HostTensor):
            pointers[name] = TilePointer.of(name, value, is_stored=argument.is_stored)
        elif value is None and argument.is_stored and not argument.is_read and argument.shape:
            dtype = HOST_DTYPES.get(argument.element, "float32")
            pointers[name] = TilePointer.empty(name, argument.shape, dtype)
        else:
            raise _missing(program, argument, "an array")
    return pointers | {name: _at_address(name, value) for name, value in places.items()}, numbers


_PLACE = re.compile(r"@(?:(\d+):)?(0x[0-9a-fA-F]+|\d+)")


def _at_address(name: str, value: HostTensor | float) -> TilePointer:
    """Memory at a byte address, of a tile's scratchpad before a colon: ``@0x100``, ``@3:0x100``."""
    match = _PLACE.fullmatch(name)
    if match is None or not isinstance(value, HostTensor):
        message = f"{name} is no place with an array"
        raise LaunchError("SPY342", message, expected="@ADDRESS or @TILE:ADDRESS", found=name)
    tile = None if match[1] is None else int(match[1])
    return TilePointer.of(name, value, address=int(match[2], 0), tile=tile)


def _missing(program: KtirProgram, argument: KtirArgument, what: str) -> LaunchError:
    kind = f"{argument.element} at an address" if argument.is_pointer else argument.element
    return LaunchError(
        "SPY342", f"argument {argument.name} needs {what}", program.module.locate(0),
        expected=f"{argument.name}: {kind}", found="nothing of the kind",
    )  # fmt: skip


Traces = LruCache[object, tuple[object, TracedKernel]]
"""Functions traced before, by program, function, numbers and sizes of the pointers; with their
modules, so that no other module takes the identity in the key.
"""


def traced_function(
    program: KtirProgram,
    function: str | None,
    pointers: Mapping[str, TilePointer],
    numbers: Mapping[str, float],
    numerics: Numerics,
    traces: Traces,
) -> TracedKernel:
    """The function's statements for these arguments."""

    def half(values: Array) -> Array:
        codes = encode_device(values, HALF, numerics.alu_rules)
        return np.asarray(decode_device(codes, HALF, numerics.alu_rules))

    def trace() -> tuple[object, TracedKernel]:
        module, own = program.module, program.function(function)
        file = Path("text.ktir" if module.source is None else module.source.file)
        return module, trace_function(program, own, pointers, numbers, half, file)

    sizes = tuple((n, p.dtype_name, p.elements, p.address) for n, p in pointers.items())
    key = (id(program.module), function, sizes, tuple(numbers.items()), str(numerics))
    return traces.get_or_make(key, trace)[1]


def describe_tiles(
    program: KtirProgram,
    given: Mapping[str, HostTensor | float],
    function: str | None,
    numerics: Numerics,
    traces: Traces,
    check: bool = True,
) -> Run:
    """The run of one function. ValidationError for a text with errors, LaunchErrors of arguments
    and of the trace, UnsupportedError for what is not simulated.
    """
    findings = program.check() if check else ()
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise ValidationError(findings)
    pointers, numbers = bind_arguments(program, function, given)
    traced = traced_function(program, function, pointers, numbers, numerics, traces)
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
        if pointer.is_stored:
            view = (pointer.shape, contiguous_strides(pointer.shape), 0)
            outputs.append(RunOutput(name, view, pointer.dtype_name))
    image = constant_bytes(traced.constants, numerics)
    size = image.size // 4
    layout = SpyreTensorLayout.from_host((size,), "float32")
    spec = ArgumentSpec(len(pointers), CONSTANTS, Role.INPUT, (size,), "float32", layout, (1,))
    buffers[CONSTANTS] = RunBuffer(CONSTANTS, layout.device_bytes, spec, image=lambda: image)
    by_index = dict(enumerate(buffers))
    launch = RunLaunch(traced, by_index, {})
    found = (*findings, *traced.findings)
    return Run(traced.file.stem, buffers, (launch,), tuple(outputs), found, is_derived=True)


def _spec(index: int, name: str, pointer: TilePointer) -> ArgumentSpec:
    flat = (max(pointer.elements, 1),)
    layout = SpyreTensorLayout.from_host(flat, pointer.dtype_name)
    role = Role.OUTPUT if pointer.tensor is None else (
        Role.INPUT_OUTPUT if pointer.is_stored else Role.INPUT
    )  # fmt: skip
    return ArgumentSpec(index, name, role, flat, pointer.dtype_name, layout, (1,))


def _flat(tensor: HostTensor, name: str) -> HostTensor:
    """The elements row by row, as the pointer's memory holds them."""
    values = tensor.to_array()
    if values.dtype == np.int64 and (values != values.astype(np.int32)).any():
        raise LaunchError(
            "SPY344", f"argument {name} has integers of more than 32 bits",
            expected="-2^31 to 2^31 - 1, as in device memory", found=str(np.abs(values).max()),
        )  # fmt: skip
    return HostTensor.from_array(name, tensor.to_array().reshape(-1), tensor.dtype_name)


def constant_bytes(constants: tuple[tuple[str, Array], ...], numerics: Numerics) -> Array:
    """The bytes of the constants, whole sticks each."""
    sticks = [np.zeros(STICK_BYTES, np.uint8)] if not constants else []
    for element, image in constants:
        name = FORMATS[element]
        numbers = image.astype(np.int32 if "INT" in name else np.float32)
        sticks.append(codes_to_bytes(encode_device(numbers, name, numerics.alu_rules), name))
    return np.concatenate(sticks)


def given_values(inputs: Mapping[str, Any]) -> dict[str, HostTensor | float]:
    """Arrays as host tensors, numbers as they are."""
    found: dict[str, HostTensor | float] = {}
    for name, value in inputs.items():
        if isinstance(value, HostTensor | int | float | np.number):
            found[name] = value if isinstance(value, HostTensor) else np.asarray(value).item()
        else:
            found[name] = HostTensor.from_array(name, np.asarray(value))
    return found
