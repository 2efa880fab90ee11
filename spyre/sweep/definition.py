"""What a sweep runs: subjects, compile settings and machine constants, as lists of values.

It is written in a TOML file, on the command line, or both; every combination is a point. Subjects
are bundle directories and functions with example sizes. Compile settings are of functions: a
bundle is compiled already, so it has a point per machine.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import spyre
from spyre.errors import JsonLocation, SweepError
from spyre.files import read_regular

_DIM = re.compile(r"(?:([A-Za-z_]\w*)=)?([1-9]\d*)")
_DTYPE = re.compile(r"[a-z]+\w*")
FUNCTION_FORM = "MODULE:FUNCTION SIZES ..., with SIZES such as rows=1024x4096 or 64x64:float32"


@dataclass(frozen=True, slots=True)
class BundleSubject:
    """A bundle, by its directory; ``text`` is what the sweep calls it."""

    text: str
    directory: str


@dataclass(frozen=True, slots=True)
class TensorText:
    """An example tensor: host sizes, a name per dim ("" for none), torch dtype name."""

    sizes: tuple[int, ...]
    names: tuple[str, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class FunctionSubject:
    """A function of tensors. ``module``: a dotted name, or the path of a Python file."""

    text: str
    module: str
    function: str
    tensors: tuple[TensorText, ...]

    @property
    def is_file(self) -> bool:
        """Whether the module is given by its path."""
        return self.module.endswith(".py")


Subject = BundleSubject | FunctionSubject


def read_bundle_subject(text: str, base: Path) -> BundleSubject:
    """A bundle directory relative to ``base``. SweepError SPY744 if it has no bundle.mlir."""
    directory = (base / text).resolve()
    if not (directory / "bundle.mlir").is_file():
        raise SweepError(
            "SPY744", "a bundle of the sweep is not there", expected=f"{directory}/bundle.mlir"
        )
    return BundleSubject(text, str(directory))


def read_function_subject(text: str, base: Path) -> FunctionSubject:
    """``MODULE:FUNCTION SIZES ...``; files relative to ``base``. SweepError SPY744."""
    target, *sizes = text.split()
    module, _, function = target.rpartition(":")
    if not module or not function.isidentifier() or not sizes:
        raise SweepError(
            "SPY744", "a function of the sweep is not given right", expected=FUNCTION_FORM,
            found=text,
        )  # fmt: skip
    if module.endswith(".py"):
        path = (base / module).resolve()
        if not path.is_file():
            raise SweepError("SPY744", "a module of the sweep is not there", expected=str(path))
        module = str(path)
    return FunctionSubject(text, module, function, tuple(_tensor_text(one, text) for one in sizes))


def _tensor_text(text: str, function: str) -> TensorText:
    sizes, _, dtype = text.partition(":")
    dims = [_DIM.fullmatch(dim) for dim in sizes.split("x")]
    if any(dim is None for dim in dims) or not _DTYPE.fullmatch(dtype or "float16"):
        raise SweepError(
            "SPY744", f"{text!r} are no sizes of a tensor", expected=FUNCTION_FORM, found=function
        )
    matches = [dim for dim in dims if dim is not None]
    return TensorText(
        tuple(int(dim[2]) for dim in matches), tuple(dim[1] or "" for dim in matches),
        dtype or "float16",
    )  # fmt: skip


def content_digest(subject: Subject) -> str:
    """SHA-256 of the files a subject consists of; of a dotted module its name only.

    SweepError SPY744 when one cannot be read.
    """
    digest = hashlib.sha256()
    for path in _subject_files(subject):
        digest.update(path.name.encode() + b"\0" + _content(path))
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise SweepError(
            "SPY744", f"{path} cannot be read", found=error.strerror or str(error)
        ) from error


def _subject_files(subject: Subject) -> list[Path]:
    if isinstance(subject, BundleSubject):
        directory = Path(subject.directory)
        return [directory / "bundle.mlir", *sorted(directory.glob("*.json"))]
    return [Path(subject.module)] if subject.is_file else []


Number = int | float
Setting = str | int | float
Settings = tuple[tuple[str, Setting], ...]
Machine = tuple[tuple[str, Number], ...]

COMPILE_AXES: Mapping[str, type | tuple[type, ...]] = {
    "cores": int,
    "lx_kept": (int, float),
    "tiles": str,
}
"""Axes of functions, in the order of the result's columns, with the type of their values."""
MODELS = ("calibrated", "ideal")
NO_TILES, AUTO_TILES = "none", "auto"


@dataclass(frozen=True, slots=True)
class SweepTask:
    """What is compiled or read once: a subject with its settings, weighed on ``machines``."""

    subject: Subject
    settings: Settings
    machines: tuple[Machine, ...]
    model: str
    machine_file: str
    host_rounds: int

    @property
    def point_keys(self) -> tuple[str, ...]:
        """What names the task's points in the journal, in the order of ``machines``."""
        return tuple(
            json.dumps([self.subject.text, self.settings, machine]) for machine in self.machines
        )


@dataclass(frozen=True, slots=True)
class Definition:
    """A whole sweep. ``machine``: values per constant, by names such as hardware.cores."""

    subjects: tuple[Subject, ...]
    compile: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    machine: Mapping[str, tuple[Number, ...]] = field(default_factory=dict)
    model: str = "calibrated"
    machine_file: str = ""
    host_rounds: int = 0

    def tasks(self) -> Iterator[SweepTask]:
        """All of them, in the order of the result."""
        machines = tuple(_product(self.machine))
        for subject in self.subjects:
            settings = self.compile if isinstance(subject, FunctionSubject) else {}
            for chosen in _product(settings):
                yield SweepTask(
                    subject, chosen, machines, self.model, self.machine_file, self.host_rounds
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that say which point a row is."""
        return ("subject", *COMPILE_AXES, *self.machine, "model")

    def text(self) -> str:
        """The definition, what its files hold, and the version, as JSON."""
        return json.dumps(
            {**asdict(self), "version": spyre.__version__, "contents": self._contents()},
            sort_keys=True,
        )

    def _contents(self) -> list[str]:
        digests = [content_digest(subject) for subject in self.subjects]
        if self.machine_file:
            digests.append(hashlib.sha256(_content(Path(self.machine_file))).hexdigest())
        return digests


def _product(axes: Mapping[str, Sequence[Any]]) -> Iterator[tuple[tuple[str, Any], ...]]:
    for values in itertools.product(*axes.values()):
        yield tuple(zip(axes, values, strict=True))


# --- reading ----------------------------------------------------------------------------------


def read_document(path: Path) -> dict[str, Any]:
    """A TOML file. SweepError SPY740."""
    try:
        return tomllib.loads(read_regular(path).decode())
    except (OSError, UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError) as error:
        raise SweepError(
            "SPY740", "the sweep cannot be read", JsonLocation(str(path)), found=str(error)
        ) from error


def make_definition(document: Mapping[str, Any], file: str, base: Path) -> Definition:
    """The sweep of a document as :func:`read_document` gives it; paths relative to ``base``.

    SweepError SPY740 for a key or value that cannot be, SPY744 for a subject.
    """
    known = ("bundles", "functions", "compile", "machine", "model", "machine_file", "host_rounds")
    for key in document:
        if key not in known:
            raise _wrong(file, key, f"one of {', '.join(known)}", key)
    subjects = _subjects(document, file, base)
    machine_file = document.get("machine_file", "")
    rounds = document.get("host_rounds", 0)
    if not isinstance(machine_file, str):
        raise _wrong(file, "machine_file", "a path", machine_file)
    if type(rounds) is not int or rounds < 0:
        raise _wrong(file, "host_rounds", "a number of calls", rounds)
    if document.get("model", "calibrated") not in MODELS:
        raise _wrong(file, "model", " or ".join(MODELS), document["model"])
    return Definition(
        subjects,
        _compile_axes(document.get("compile", {}), file),
        _machine_axes(document.get("machine", {}), file),
        document.get("model", "calibrated"),
        str((base / machine_file).resolve()) if machine_file else "",
        rounds,
    )


def _subjects(document: Mapping[str, Any], file: str, base: Path) -> tuple[Subject, ...]:
    kinds: tuple[tuple[str, Callable[[str, Path], BundleSubject | FunctionSubject]], ...] = (
        ("bundles", read_bundle_subject),
        ("functions", read_function_subject),
    )
    subjects: list[Subject] = []
    for kind, read in kinds:
        texts = document.get(kind, [])
        if not isinstance(texts, list) or not all(isinstance(t, str) and t for t in texts):
            raise _wrong(file, kind, "a list of texts", texts)
        subjects += [read(text, base) for text in texts]
    if not subjects:
        raise _wrong(file, "bundles", "bundles or functions", "neither")
    return tuple(dict.fromkeys(subjects))


def _compile_axes(tables: Any, file: str) -> dict[str, tuple[Setting, ...]]:
    if not isinstance(tables, dict):
        raise _wrong(file, "compile", "a table", tables)
    for name in tables:
        if name not in COMPILE_AXES:
            raise _wrong(file, f"compile.{name}", f"one of {', '.join(COMPILE_AXES)}", name)
    axes = {
        name: _values(tables[name], COMPILE_AXES[name], file, f"compile.{name}")
        for name in COMPILE_AXES
        if name in tables
    }
    for text in axes.get("tiles", ()):
        read_tiles(str(text), file)
    return axes


def _machine_axes(tables: Any, file: str) -> dict[str, tuple[Number, ...]]:
    """Constants by dotted name, written as ``hardware.cores = [..]`` or in quotes."""
    if not isinstance(tables, dict):
        raise _wrong(file, "machine", "a table", tables)
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{name}.{key}" if key else name: one for key, one in inner.items()}
    return {
        name: _values(value, get_args(Number), file, f"machine.{name}")
        for name, value in flat.items()
    }


def _values(given_values: Any, kind: Any, file: str, path: str) -> tuple[Any, ...]:
    values = given_values if isinstance(given_values, list) else [given_values]
    fits = all(isinstance(v, kind) and not isinstance(v, bool) for v in values)
    if not values or not fits:
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise _wrong(file, path, f"values of {names}", given_values)
    return tuple(dict.fromkeys(values))


def read_tiles(text: str, file: str = "--tiles") -> dict[str, int]:
    """Loops of ``rows=4`` or ``rows=4,heads=2``; {} for none and auto. SweepError SPY740."""
    if text in (NO_TILES, AUTO_TILES):
        return {}
    counts: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.partition("=")
        if not name.isidentifier() or not count.isdecimal() or int(count) < 1 or name in counts:
            raise _wrong(file, "compile.tiles", "none, auto, or DIM=COUNT,...", text)
        counts[name] = int(count)
    return counts


def _wrong(file: str, path: str, expected: str, found: object) -> SweepError:
    return SweepError(
        "SPY740",
        "a sweep says something it cannot",
        JsonLocation(file, f"$.{path}"),
        expected=expected,
        found=str(found),
    )
