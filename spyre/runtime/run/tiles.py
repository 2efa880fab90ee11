"""A KTIR program with its arguments as a `Run`: bound, traced, placed like any other.

Pointers are tensors, row major as the host has them; numbers are values of the trace. The memory of
the constants is one more argument, written as raw bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from math import prod
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.errors import LaunchError
from spyre.hw.numerics import Numerics
from spyre.hw.spec import STICK_BYTES
from spyre.hw.tiles import PointerArgument, TracedKernel, trace_function
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.lru_cache import LruCache
from spyre.mlir.tiles import FLOATS, KtirArgument, KtirProgram
from spyre.runtime.arguments import ArgumentSpec, HostTensor
from spyre.runtime.program import Role
from spyre.runtime.run.runs import Run, RunBuffer, RunLaunch, RunOutput

Array = npt.NDArray[Any]
ELEMENTS = {
    "float16": "f16", "float32": "f32", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "bool": "i1",
}  # fmt: skip
HOST_DTYPES = {element: dtype for dtype, element in ELEMENTS.items()}
HOST_DTYPES |= {"!spyreop.df16": "float16", "si32": "int32", "index": "int64"}
CONSTANTS = "constants"
MOST_TRACED = 64
"""Kept traces of a session."""


class TilePointer(PointerArgument, frozen=True, eq=False, kw_only=True):
    """A pointer argument with its memory. ``tensor`` None: memory that is only stored to."""

    places: tuple[TilePointer, ...] = ()
    shape: tuple[int, ...]
    dtype_name: str
    tensor: HostTensor | None = None
    is_stored: bool = True

    @classmethod
    def of(cls, name: str, shape: tuple[int, ...], dtype_name: str, **others: Any) -> TilePointer:
        """Memory for elements of a host dtype."""
        element, count = ELEMENTS.get(dtype_name, dtype_name), prod(shape)
        return cls(name, element, count, shape=shape, dtype_name=dtype_name, **others)


def bind_arguments(
    program: KtirProgram, function: str | None, given: Mapping[str, HostTensor | float]
) -> tuple[dict[str, TilePointer], dict[str, float]]:
    """Pointers and numbers by name. LaunchError SPY342 for one that is missing or unknown."""
    arguments = {a.name: a for a in program.arguments(function)}
    used = {name for op in program.function(function).walk() for name in op.uses()}
    pointers: dict[str, TilePointer] = {}
    numbers: dict[str, float] = {}
    for name in given:
        if not name.startswith("@") and name not in arguments:
            expected = ", ".join(arguments) or "no arguments"
            message = f"there is no argument {name}"
            raise LaunchError("SPY342", message, expected=expected, found=name)
    for name, argument in arguments.items():
        value, stored = given.get(name), argument.is_stored
        is_unused = name not in used
        if isinstance(value, Real) and (is_unused or _fits(value, argument)):
            numbers[name] = float(value) if isinstance(value, float) else int(value)
        elif (argument.is_pointer or is_unused) and isinstance(value, HostTensor):
            pointers[name] = _pointer(name, value, is_stored=stored)
        elif value is None and stored and not argument.is_read and argument.shape:
            dtype = HOST_DTYPES.get(argument.element, "float32")
            pointers[name] = TilePointer.of(name, argument.shape, dtype)
        else:
            what = "an array" if argument.is_pointer else "a number"
            kind = f"{argument.element} at an address" if argument.is_pointer else argument.element
            raise LaunchError(
                "SPY342", f"argument {name} needs {what}", program.module.locate(0),
                expected=f"{name}: {kind}", found="nothing of the kind",
            )  # fmt: skip
    for name, value in given.items():
        if name.startswith("@"):
            pointers[name] = _at_address(name, value)
    return _joined(pointers), numbers


def _fits(value: Real, argument: KtirArgument) -> bool:
    """True if a number is one of the argument's type: a fraction is no integer."""
    return argument.element in (*FLOATS, "float") or float(value).is_integer()


def _pointer(name: str, tensor: HostTensor, **others: Any) -> TilePointer:
    return TilePointer.of(name, tensor.shape, tensor.dtype_name, tensor=tensor, **others)


_PLACE = re.compile(r"@(?:(\d+):)?(0x[0-9a-fA-F]+|\d+)")


def _at_address(name: str, value: HostTensor | float) -> TilePointer:
    """Memory at a byte address, of a tile's scratchpad before a colon: ``@0x100``, ``@3:0x100``."""
    match = _PLACE.fullmatch(name)
    if match is None or not isinstance(value, HostTensor):
        message = f"{name} is no place with an array"
        raise LaunchError("SPY342", message, expected="@ADDRESS or @TILE:ADDRESS", found=name)
    tile = None if match[1] is None else int(match[1])
    return _pointer(name, value, address=int(match[2], 0), tile=tile)


def _joined(pointers: Mapping[str, TilePointer]) -> dict[str, TilePointer]:
    """The pointers; places of device memory that follow each other in whole sticks are one."""
    found, runs = dict(pointers), list[list[TilePointer]]()
    places = {p.address: p for p in pointers.values() if p.tile is None and p.address is not None}
    for address in sorted(places):
        own, place = runs[-1] if runs else [], places[address]
        size_bytes = sum(p.size_bytes for p in own)
        if own and size_bytes % STICK_BYTES == 0 and own[0].address == address - size_bytes:
            own.append(place)
        else:
            runs.append([place])
    for own in (own for own in runs if len(own) > 1):
        for place in own:
            del found[place.name]
        name, size_bytes = f"{own[0].name} …", sum(p.size_bytes for p in own)
        found[name] = TilePointer(
            name, "", size_bytes, own[0].address, places=tuple(own),
            shape=(-(-size_bytes // 4),), dtype_name="float32",
        )  # fmt: skip
    return found


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

    def trace() -> tuple[object, TracedKernel]:
        file = Path("text.ktir" if module.source is None else module.source.file)
        own = program.function(function)
        return module, trace_function(program, own, pointers, numbers, numerics, file)

    module = program.module
    every = (p for own in pointers.values() for p in (own, *own.places))
    sizes = tuple((p.name, p.element, p.elements, p.address, p.shared) for p in every)
    key = (id(module), function, sizes, tuple(numbers.items()), str(numerics))
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
    and of the trace, UnsupportedError for operations that are not simulated.
    """
    findings = program.check(raise_on_error=True) if check else ()
    pointers, numbers = bind_arguments(program, function, given)
    traced = traced_function(program, function, pointers, numbers, numerics, traces)
    buffers = {name: _buffer(k, pointer) for k, (name, pointer) in enumerate(pointers.items())}
    image, n_bytes = traced.constants, traced.constants.size
    spec = _row(len(pointers), CONSTANTS, Role.INPUT, n_bytes // 4, "float32")
    buffers[CONSTANTS] = RunBuffer(CONSTANTS, n_bytes, spec, image=lambda: image)
    launch = RunLaunch(traced, dict(enumerate(buffers)), {})
    outputs = []
    for name, pointer in pointers.items():
        for own in pointer.places or (pointer,):
            if own is not pointer:
                offset = (own.address or 0) - (pointer.address or 0)
                shared = replace(_buffer(-1, own), alias_of=name, offset_bytes=offset)
                buffers[own.name] = shared
            if own.is_stored:
                view = (own.shape, contiguous_strides(own.shape), 0)
                outputs.append(RunOutput(own.name, view, own.dtype_name))
    found = (*findings, *traced.findings)
    return Run(traced.file.stem, buffers, (launch,), tuple(outputs), found, is_derived=True)


def _buffer(index: int, pointer: TilePointer) -> RunBuffer:
    """The memory of a pointer, filled with its tensor if it has one."""
    name, tensor = pointer.name, pointer.tensor
    role = Role.INPUT_OUTPUT if pointer.is_stored else Role.INPUT
    role = Role.OUTPUT if tensor is None and not pointer.places else role
    spec = _row(index, name, role, prod(pointer.shape) or 1, pointer.dtype_name)
    content = None if tensor is None else partial(_flat, tensor, name)
    size, is_input = spec.layout.device_bytes, content is not None
    return RunBuffer(name, size, spec, content=content, is_input=is_input)


def _row(index: int, name: str, role: Role, size: int, dtype_name: str) -> ArgumentSpec:
    """Elements in a row, as an argument."""
    layout = SpyreTensorLayout.from_host((size,), dtype_name)
    return ArgumentSpec(index, name, role, (size,), dtype_name, layout, (1,))


def _flat(tensor: HostTensor, name: str) -> HostTensor:
    """The elements row by row, as the pointer's memory holds them."""
    values = tensor.to_array()
    if values.dtype == np.int64 and (values != values.astype(np.int32)).any():
        message = f"argument {name} has integers of more than 32 bits"
        expected, found = "-2^31 to 2^31 - 1, as in device memory", str(np.abs(values).max())
        raise LaunchError("SPY344", message, expected=expected, found=found)
    return HostTensor.from_array(name, values.reshape(-1), tensor.dtype_name)


def given_values(inputs: Mapping[str, Any]) -> dict[str, HostTensor | float]:
    """Arrays as host tensors, numbers as they are."""
    return {
        name: value if isinstance(value, HostTensor)
        else np.asarray(value).item() if isinstance(value, int | float | np.number)
        else HostTensor.from_array(name, np.asarray(value))
        for name, value in inputs.items()
    }  # fmt: skip
