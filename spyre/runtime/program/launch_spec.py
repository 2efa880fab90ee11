"""``launch_spec.json``: the shapes, dtypes, roles and layouts of a kernel's arguments.

Neither bundle.mlir nor the SDSC files carry them, so launches, transfers and ``spyre-run`` read
this file; the torch backend writes it. Version 1 of the schema (runtime reference §5): keys we do
not know are ignored, a newer version is refused, every error names its JSON path. The meaning of
the parameters of bundle.mlir follows from their names and annotations (bundle reference §3.2).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec

from spyre.errors import BundleError, JsonLocation, LaunchError, SpyreError
from spyre.layout import SpyreTensorLayout
from spyre.mlir.bundle_source import read_inside
from spyre.mlir.program import Parameter

LAUNCH_SPEC_FILE = "launch_spec.json"
SPYRE_CODE_DIRECTORY = "spyreCodeDir"
VERSION = 1
DERIVED_EMITTER = "spyre-compile, derived"
"""``emitter`` of a file that spyre-compile derived from the SDSCs: readers derive it anew."""


class Role(StrEnum):
    """A kernel's use of an argument."""

    INPUT = "input"
    OUTPUT = "output"
    INPUT_OUTPUT = "input_output"


Natural = Annotated[int, msgspec.Meta(ge=0)]


class ArgumentEntry(msgspec.Struct, frozen=True):
    """One kernel argument.

    ``shape`` in elements; a name in it is a dynamic size. ``dtype``: torch name without
    ``torch.``. ``layout`` is None when the compiler left it out. ``name``: the compiled function's
    name for it (``x``, ``self.fc.weight``), None if unknown. ``value``: of all elements, if the
    argument is a number in the function.
    """

    arg_index: Natural
    role: Role
    shape: tuple[int | str, ...]
    dtype: str
    layout: SpyreTensorLayout | None = None
    name: str | None = None
    value: float | None = None


class SymbolKind(msgspec.Struct, frozen=True, omit_defaults=True):
    """The meaning of one symbol of a symbolic bundle, which the launch binds.

    ``kind``: kernel, kernel_slice, kernel_derived, kernel_derived_symbolic, pool or dimension;
    which of the other fields are present depends on it.
    """

    kind: str
    base_sym_idx: int | None = None
    offset: int | None = None
    arg_index: int | None = None
    granularity: int | None = None
    max_value: int | None = None
    pytorch_sym: str | None = None
    core_idx: int | None = None
    split_count: int | None = None


class LaunchSpec(msgspec.Struct, frozen=True):
    """The whole file. ``pool_size`` in bytes (0: the kernel takes no pool).

    ``bundle_symbolic_args``: addresses are launch arguments; otherwise they are baked in.
    """

    version: int
    kernel_name: str
    args: tuple[ArgumentEntry, ...]
    pool_size: Natural = 0
    bundle_symbolic_args: bool = True
    emitter: str | None = None
    symbol_kinds: tuple[SymbolKind, ...] | None = None
    symbols: dict[str, dict[str, Any]] | None = None


class _Header(msgspec.Struct):
    version: int = 0
    emitter: Any = None


def is_derived_spec(text: bytes) -> bool:
    """True for a file of :data:`DERIVED_EMITTER`, which adds nothing to the SDSCs."""
    try:
        return bool(msgspec.json.decode(text, type=_Header).emitter == DERIVED_EMITTER)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def find_launch_spec(kernel_directory: Path | str) -> Path | None:
    """The launch_spec.json beside a kernel's bundle.mlir or in its spyreCodeDir, else None."""
    directory = Path(kernel_directory)
    for candidate in (directory, directory / SPYRE_CODE_DIRECTORY):
        if os.path.isfile(path := candidate / LAUNCH_SPEC_FILE):
            return path
    return None


def read_launch_spec(path: Path | str) -> LaunchSpec:
    """Read and check a launch_spec.json.

    BundleError SPY301 when the file cannot be read, SPY302 with the JSON path when it does not
    follow the schema or a layout is not well formed, SPY303 when its version is newer than 1.
    """
    return parse_launch_spec(spec_text(path), str(path))


def parse_launch_spec(text: bytes, file: str = LAUNCH_SPEC_FILE) -> LaunchSpec:
    """The text of a launch_spec.json, checked; errors as of `read_launch_spec`."""
    version = _decode(text, _Header, file).version
    if version > VERSION:
        raise BundleError(
            "SPY303",
            "launch_spec.json is newer than this reader",
            JsonLocation(file, "$.version"),
            expected=f"version <= {VERSION}",
            found=f"version {version}",
        )
    spec: LaunchSpec = _decode(text, LaunchSpec, file)
    _check_arguments(spec, file)
    return spec


def format_launch_spec(spec: LaunchSpec) -> str:
    """The file's text on one line; optional keys that are None are left out, but for layouts."""
    fields = msgspec.to_builtins(spec)
    for key in ("emitter", "symbol_kinds", "symbols"):
        if fields[key] is None:
            del fields[key]
    for argument in fields["args"]:
        for key in ("name", "value"):
            if argument[key] is None:
                del argument[key]
    return msgspec.json.encode(fields).decode()


def spec_text(path: Path | str) -> bytes:
    """The text of a launch_spec.json. BundleError SPY301 when the file cannot be read."""
    directory = os.path.dirname(path)
    if os.path.basename(directory) == SPYRE_CODE_DIRECTORY:
        directory = os.path.dirname(directory)
    try:
        return read_inside(path, directory)
    except OSError as error:
        raise BundleError(
            "SPY301", f"cannot read launch_spec.json: {error.strerror}", JsonLocation(str(path))
        ) from error


def _decode(text: bytes, kind: type[Any], file: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except SpyreError:
        _refuse_layout(text, file)
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message, path = _split_path(str(error))
        raise BundleError("SPY302", message, JsonLocation(file, path)) from error


def _refuse_layout(text: bytes, file: str) -> None:
    """SPY302 at the first argument whose layout is not well formed."""
    for k, argument in enumerate(msgspec.json.decode(text)["args"]):
        try:
            msgspec.convert(argument, ArgumentEntry)
        except SpyreError as error:
            wrong, location = error.finding, JsonLocation(file, f"$.args[{k}].layout")
            raise BundleError(
                "SPY302", wrong.message, location, expected=wrong.expected, found=wrong.found
            ) from error


def _split_path(message: str) -> tuple[str, str]:
    """msgspec's message without its `` - at `$.path` `` tail, and that path."""
    match = re.fullmatch(r"(.*) - at `(.*)`", message, re.DOTALL)
    return (match.group(1), match.group(2)) if match else (message, "$")


def _check_arguments(spec: LaunchSpec, file: str) -> None:
    known: set[int] = set()
    for i, argument in enumerate(spec.args):
        if argument.arg_index in known:
            raise BundleError(
                "SPY302",
                "two arguments have the same index",
                JsonLocation(file, f"$.args[{i}].arg_index"),
                expected=f"another index than {sorted(known)}",
                found=str(argument.arg_index),
            )
        known.add(argument.arg_index)
        negative = [size for size in argument.shape if isinstance(size, int) and size < 0]
        if negative:
            message = "a size in the shape of an argument is negative"
            location = JsonLocation(file, f"$.args[{i}].shape")
            raise BundleError(
                "SPY302", message, location, expected="0 or more elements", found=str(negative[0])
            )


# --- parameters of bundle.mlir ----------------------------------------------------------------


_ARGUMENT_NAME = re.compile(r"arg_(\d+)_base_addr")
"""Name of the parameter that holds the address of argument K."""
_POOL_NAME = "pool_base_addr"
POOL = -1
"""The pool, where argument indices name memory."""


def symbol_kind(parameter: Parameter) -> SymbolKind:
    """``kernel`` (address of argument arg_index), ``pool`` (its address) or ``dimension``.

    A dimension is a runtime size or any other integer that a launch gives by name: pytorch_sym.
    """
    owner = None if parameter.is_size else owner_of(parameter.name)
    if owner is not None:
        return SymbolKind("pool") if owner == POOL else SymbolKind("kernel", arg_index=owner)
    return SymbolKind(
        "dimension",
        granularity=parameter.granularity,
        max_value=parameter.max_value,
        pytorch_sym=parameter.name,
    )


def owner_of(name: str) -> int | None:
    """Argument index, or POOL, whose address parameter ``name`` holds; None for a value."""
    if name == _POOL_NAME:
        return POOL
    match = _ARGUMENT_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def require_no_size(parameter: Parameter, values: Mapping[str, int]) -> None:
    """LaunchError SPY366 for a runtime size, which has to be among ``values`` by name."""
    if not parameter.is_size:
        return
    steps = parameter.granularity or 1
    most = "" if parameter.max_value is None else f" up to {parameter.max_value}"
    message = f"runtime size {parameter.name} has no value"
    expected = f"a value for {parameter.name}: a positive multiple of {steps}{most}"
    found = ", ".join(values) or "no values"
    raise LaunchError("SPY366", message, parameter.location, expected=expected, found=found)
