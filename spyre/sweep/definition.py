"""The definition of a sweep: targets, compile settings and machine constants, as lists of values.

It comes from a TOML file, the command line, or both; every combination of values is a point.
Targets are bundle directories and functions with example sizes. Compile settings apply to functions
only: a bundle is already compiled and has one point per machine.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

import spyre
from spyre.errors import JsonLocation, SweepError
from spyre.files import FieldError, convert_fields, read_regular

_DIM = re.compile(r"(?:([A-Za-z_]\w*)=)?([1-9]\d*)")
_DTYPE = re.compile(r"[a-z]+\w*")
FUNCTION_FORM = "MODULE:FUNCTION SIZES ..., with SIZES such as rows=1024x4096 or 64x64:float32"

ExampleText = tuple[tuple[int, ...], tuple[str, ...], str]
"""An example tensor: host sizes, a name per dim ("" for none), torch dtype name."""


class SweepTarget(msgspec.Struct, frozen=True):
    """A bundle directory, or a function of tensors.

    ``text``: its name in the sweep and in the result. ``path``: of the bundle's directory; of a
    function's module, a dotted name or the path of a Python file. ``function``: "" for a bundle.
    """

    text: str
    path: str
    function: str = ""
    tensors: tuple[ExampleText, ...] = ()

    @property
    def is_file(self) -> bool:
        """Whether ``path`` is that of a Python file."""
        return self.path.endswith(".py") and bool(self.function)


def read_bundle_target(text: str, base: Path) -> SweepTarget:
    """The bundle at ``text``, relative to ``base``. SweepError SPY744 without a bundle.mlir."""
    directory = (base / text).resolve()
    if not (directory / "bundle.mlir").is_file():
        raise SweepError(
            "SPY744", "a bundle of the sweep does not exist", expected=f"{directory}/bundle.mlir"
        )
    return SweepTarget(text, str(directory))


def read_function_target(text: str, base: Path) -> SweepTarget:
    """Parse ``MODULE:FUNCTION SIZES ...``; files are relative to ``base``. SweepError SPY744."""
    target, *sizes = text.split()
    module, _, function = target.rpartition(":")
    if not module or not function.isidentifier() or not sizes:
        message = "a function of the sweep has the wrong form"
        raise SweepError("SPY744", message, expected=FUNCTION_FORM, found=text)
    if module.endswith(".py"):
        path = (base / module).resolve()
        if not path.is_file():
            raise SweepError("SPY744", "a module of the sweep does not exist", expected=str(path))
        module = str(path)
    return SweepTarget(text, module, function, tuple(_example_text(one, text) for one in sizes))


def _example_text(text: str, function: str) -> ExampleText:
    extents, _, dtype = text.partition(":")
    dims = [_DIM.fullmatch(dim) for dim in extents.split("x")]
    if any(dim is None for dim in dims) or not _DTYPE.fullmatch(dtype or "float16"):
        raise SweepError(
            "SPY744", f"{text!r} are no sizes of a tensor", expected=FUNCTION_FORM, found=function
        )
    matches = [dim for dim in dims if dim is not None]
    sizes, names = zip(*((int(dim[2]), dim[1] or "") for dim in matches), strict=True)
    return sizes, names, dtype or "float16"


def content_digest(target: SweepTarget) -> str:
    """Return the SHA-256 of the files of a target; modules given by a dotted name have none.

    SweepError SPY744 if a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in _target_files(target):
        digest.update(path.name.encode() + b"\0" + _content(path))
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise SweepError(
            "SPY744", f"{path} cannot be read", found=error.strerror or str(error)
        ) from error


def _target_files(target: SweepTarget) -> list[Path]:
    if not target.function:
        directory = Path(target.path)
        return [directory / "bundle.mlir", *sorted(directory.glob("*.json"))]
    return [Path(target.path)] if target.is_file else []


Number = int | float
Setting = str | int | float
Settings = tuple[tuple[str, Setting], ...]
Machine = tuple[tuple[str, Number], ...]

MODELS = ("calibrated", "ideal")
NO_TILES, AUTO_TILES = "none", "auto"


class SweepTask(msgspec.Struct, frozen=True):
    """A target with its settings, compiled or read once and modelled on all ``machines``."""

    target: SweepTarget
    settings: Settings
    machines: tuple[Machine, ...]
    model: str
    machine_file: str
    host_rounds: int

    @property
    def point_keys(self) -> tuple[str, ...]:
        """The keys of the task's points in the journal, in the order of ``machines``."""
        return tuple(
            json.dumps([self.target.text, self.settings, machine]) for machine in self.machines
        )


class Definition(msgspec.Struct, frozen=True):
    """A whole sweep. ``machine``: the values of each constant, by names such as hardware.cores."""

    targets: tuple[SweepTarget, ...]
    compile: Mapping[str, tuple[Setting, ...]] = msgspec.field(default_factory=dict)
    machine: Mapping[str, tuple[Number, ...]] = msgspec.field(default_factory=dict)
    model: str = "calibrated"
    machine_file: str = ""
    host_rounds: int = 0

    def tasks(self) -> Iterator[SweepTask]:
        """Yield the tasks in the order of the result."""
        machines = tuple(_product(self.machine))
        for target in self.targets:
            settings = self.compile if target.function else {}
            for chosen in _product(settings):
                yield SweepTask(
                    target, chosen, machines, self.model, self.machine_file, self.host_rounds
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that identify the point of a row."""
        return ("subject", *COMPILE_AXES, *self.machine, "model")

    def text(self) -> str:
        """Return the definition, digests of its files, and the version of spyre as JSON."""
        digests = [content_digest(target) for target in self.targets]
        if self.machine_file:
            digests.append(hashlib.sha256(_content(Path(self.machine_file))).hexdigest())
        content = {**msgspec.to_builtins(self), "version": spyre.__version__, "contents": digests}
        return json.dumps(content, sort_keys=True)


def _product(axes: Mapping[str, Sequence[Any]]) -> Iterator[tuple[tuple[str, Any], ...]]:
    for values in itertools.product(*axes.values()):
        yield tuple(zip(axes, values, strict=True))


# --- reading ----------------------------------------------------------------------------------


def read_document(path: Path) -> dict[str, Any]:
    """Read a TOML file. SweepError SPY740."""
    try:
        return tomllib.loads(read_regular(path).decode())
    except (OSError, ValueError, RecursionError) as error:  # numbers too long are ValueErrors
        raise SweepError(
            "SPY740", "the sweep cannot be read", JsonLocation(str(path)), found=str(error)
        ) from error


_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Numbers = Annotated[list[int | float], msgspec.Meta(min_length=1)]
_Texts = Annotated[list[str], msgspec.Meta(min_length=1)]


class _CompileTable(msgspec.Struct, forbid_unknown_fields=True):
    """The table ``[compile]``. Its fields are axes, in the order of the columns of the result."""

    cores: Annotated[list[int], msgspec.Meta(min_length=1)] = []
    lx_kept: _Numbers = []
    tiles: _Texts = []


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """The TOML document. `make_definition` checks the values of ``machine``, for their names."""

    bundles: list[_Text] = []
    functions: list[_Text] = []
    compile: _CompileTable = msgspec.field(default_factory=_CompileTable)
    machine: dict[str, Any] = {}
    model: Literal["calibrated", "ideal"] = "calibrated"
    machine_file: str = ""
    host_rounds: Annotated[int, msgspec.Meta(ge=0)] = 0


COMPILE_AXES = _CompileTable.__struct_fields__
"""Axes of functions, in the order of the columns of the result."""


def make_definition(document: Mapping[str, Any], file: str, base: Path) -> Definition:
    """Return the sweep of a document from :func:`read_document`; paths are relative to ``base``.

    SweepError SPY740 for wrong keys and values, SPY744 for wrong targets.
    """
    compile_table = document.get("compile", {})
    if isinstance(compile_table, dict):
        compile_table = {name: _as_list(value) for name, value in compile_table.items()}
    found = _converted({**document, "compile": compile_table}, _Document, file)
    axes = {name: tuple(dict.fromkeys(getattr(found.compile, name))) for name in COMPILE_AXES}
    for text in axes["tiles"]:
        read_tiles(text, file)
    constants = {
        name: _converted(_as_list(value), _Numbers, file, f".machine.{name}")
        for name, value in _dotted(found.machine).items()
    }
    targets = [read_bundle_target(text, base) for text in found.bundles]
    targets += [read_function_target(text, base) for text in found.functions]
    if not targets:
        raise _wrong(file, ".bundles", "bundles or functions", "neither")
    return Definition(
        tuple(dict.fromkeys(targets)),
        {name: values for name, values in axes.items() if values},
        {name: tuple(dict.fromkeys(values)) for name, values in constants.items()},
        found.model,
        str((base / found.machine_file).resolve()) if found.machine_file else "",
        found.host_rounds,
    )


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _dotted(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return machine constants by dotted name; in TOML the part before the dot may be a table."""
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{name}.{key}" if key else name: one for key, one in inner.items()}
    return flat


_Kind = TypeVar("_Kind")


def _converted(value: Any, kind: type[_Kind], file: str, path: str = "") -> _Kind:
    """Return ``value`` as ``kind``. SweepError SPY740 with the path of the field that is wrong.

    ``path``: of ``value`` in the document, "" for the whole document.
    """
    try:
        return convert_fields(value, kind)
    except FieldError as error:
        raise _wrong(file, path + error.path, error.expected, error.found) from None


def read_tiles(text: str, file: str = "--tiles") -> dict[str, int]:
    """Parse loops such as ``rows=4,heads=2``; {} for "none" and "auto". SweepError SPY740."""
    if text in (NO_TILES, AUTO_TILES):
        return {}
    counts: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.partition("=")
        if not name.isidentifier() or not count.isdecimal() or int(count) < 1 or name in counts:
            raise _wrong(file, ".compile.tiles", "none, auto, or DIM=COUNT,...", text)
        counts[name] = int(count)
    return counts


def _wrong(file: str, path: str, expected: str, found: object) -> SweepError:
    message = "a sweep has a wrong key or value"
    location = JsonLocation(file, f"${path}")
    return SweepError("SPY740", message, location, expected=expected, found=str(found))
