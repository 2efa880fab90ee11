"""Compiled bundles: files with their digest, read, lowered and checked; pickled as plans.

A launch then only binds arguments and links. A plan contains no directory: loading it inserts the
directory that the bundle is used from, for messages. Nothing here imports the parser until
something has to be parsed.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, Union, cast

from spyre.errors import BundleError, Finding, Severity, UnsupportedError, ValidationError
from spyre.mlir.bundle_source import MODULE_FILE, BundleFiles, is_sdsc_file, read_inside
from spyre.mlir.operation import Operation
from spyre.mlir.program import LinkableProgram, LoopProgram
from spyre.runtime.program.launch_spec import (
    LAUNCH_SPEC_FILE,
    LaunchSpec,
    SymbolKind,
    find_launch_spec,
    is_derived_spec,
    parse_launch_spec,
    spec_text,
    symbol_kind,
)

if TYPE_CHECKING:
    from spyre.mlir.builder import BuiltBundle
    from spyre.mlir.bundle import Bundle


class LoweredProgram(Protocol):
    """A program of any kind, ready to be linked and launched.

    ``directory``: its location, for messages. ``operations``: by the name its executes use.
    """

    @property
    def directory(self) -> Path:
        """Location of its files."""

    @property
    def program(self) -> LinkableProgram:
        """Parameters, allocations and executes."""

    @property
    def operations(self) -> Mapping[str, Operation]:
        """Operations by name."""

    def check(self, raise_on_error: bool = False) -> tuple[Finding, ...]:
        """All findings; ``raise_on_error``: ValidationError with all of them if one is an error."""


LoweredBundle = Union["Bundle", "BuiltBundle", "CompiledBundle"]
"""A bundle as a `LoweredProgram`, its operations named by SDSC file: just read, built, or compiled.
Errors as of `Bundle`."""


def require_bundle(program: LoweredProgram, feature: str) -> LoweredBundle:
    """``program`` as a bundle, for a feature that reads its loops.

    UnsupportedError SPY889, which names the feature, for other kinds of programs.
    """
    if isinstance(program.program, LoopProgram):
        return cast(LoweredBundle, program)
    raise UnsupportedError(
        "SPY889",
        f"{feature} of this kind of program is not simulated",
        expected="a program of loops and executes, as in bundle.mlir",
        found=f"{type(program.program).__name__} {program.directory.name}",
    )


def digest_of(program: LoweredProgram) -> str:
    """What identifies a program on a card: its files, or what it executes."""
    if isinstance(program, CompiledBundle):
        return program.digest
    if isinstance(program.program, LoopProgram):
        return files_of_bundle(cast("Bundle", program)).digest
    return hashlib.sha256(f"{program.directory}\n{program.program}".encode()).hexdigest()


_QUOTED = re.compile(rb'"([^"\n]*)"')


def read_bundle_files(
    path: str | os.PathLike[str], executed: Iterable[str] = ()
) -> BundleFiles | None:
    """The files of a bundle directory, or of the module given.

    ``executed``: names of SDSC files that are known to be part of it, if the module was parsed.
    None when there is no module or a file cannot be read; `load_bundle` then raises the reason.
    """
    text = os.fspath(path)
    directory, module_name = text, MODULE_FILE
    if not os.path.isdir(text):
        directory, module_name = os.path.split(text)
    try:
        module = read_inside(os.path.join(directory, module_name), directory)
        quoted = set(_QUOTED.findall(module))
        sdscs = set(filter(is_sdsc_file, os.listdir(directory or ".")))
        known = set(executed)
        names = _files_among(directory, sdscs.union(known, map(os.fsdecode, quoted)))
        files = {name: read_inside(os.path.join(directory, name), directory) for name in names}
        files |= read_given_launch_spec(directory)
    except (OSError, ValueError, BundleError):
        return None
    # Names are looked for without parsing. A name spelled with escapes could be any file's.
    certain = bool(known) or not any(b"\\" in name for name in quoted)
    complete = certain and sdscs <= files.keys()
    return BundleFiles(Path(directory), module_name, {**files, module_name: module}, complete)


def _files_among(directory: str, names: set[str]) -> list[str]:
    """Those of ``names`` that are files inside the directory, spelled plainly."""
    pure = {PurePosixPath(name) for name in names if name and "\0" not in name}
    inside = (str(p) for p in pure if not p.is_absolute() and ".." not in p.parts)
    return sorted(n for n in inside if os.path.isfile(os.path.join(directory, n)))


def read_given_launch_spec(directory: str | os.PathLike[str]) -> dict[str, bytes]:
    """The launch_spec.json a launch would read, by name, unless spyre-compile has derived it.

    BundleError SPY301 when it cannot be read.
    """
    path = find_launch_spec(os.fspath(directory))
    if path is None or is_derived_spec(data := spec_text(path)):
        return {}
    return {LAUNCH_SPEC_FILE: data}


PLACEHOLDER = "\0bundle directory\0"
"""Stands for the bundle's directory while a plan is made."""


@dataclass(frozen=True)
class CompiledBundle:
    """A bundle that was read, lowered and checked. Immutable: any number of threads may share it.

    ``digest``: of the bundle's files. ``directory``: of these files, for messages. ``operations``:
    by SDSC file name. ``launch_spec``: launch_spec.json of the bundle with its runtime sizes
    unbound; None without one. ``symbols``: one kind per parameter.
    ``findings``: warnings of the checker.
    """

    digest: str
    directory: Path
    program: LoopProgram
    operations: Mapping[str, Operation]
    findings: tuple[Finding, ...]
    launch_spec: LaunchSpec | None
    symbols: tuple[SymbolKind, ...]

    @property
    def name(self) -> str:
        """The kernel's name: the launch spec's, else the directory's."""
        if self.launch_spec is not None:
            return self.launch_spec.kernel_name
        return self.directory.resolve().name

    def check(self, raise_on_error: bool = False) -> tuple[Finding, ...]:
        """The findings, none of which is an error: such bundles do not compile."""
        return self.findings


def compile_bundle(bundle: Bundle | str | os.PathLike[str]) -> CompiledBundle:
    """A bundle, or a bundle directory, compiled; the cache is neither read nor written.

    SpyreErrors of reading, ValidationError with all findings when the check finds an error,
    BundleError SPY301-SPY303 for its launch_spec.json.
    """
    from spyre.mlir.bundle import Bundle, load_bundle

    if isinstance(bundle, Bundle):
        return _compiled(bundle, files_of_bundle(bundle))
    loaded = load_bundle(bundle)
    read = read_bundle_files(bundle)
    return _compiled(loaded, read if read is not None else files_of_bundle(loaded))


def compile_files(files: BundleFiles) -> CompiledBundle:
    """As `compile_bundle`, for files in memory; messages name ``files.directory``."""
    from spyre.mlir.bundle import read_bundle

    return _compiled(read_bundle(files), files)


def files_of_bundle(bundle: Bundle) -> BundleFiles:
    """The files a bundle in memory would be written as, and the launch spec of its directory."""
    from spyre.mlir.sdsc import encode_sdsc
    from spyre.mlir.text import print_module

    files = {name: encode_sdsc(sdsc) for name, sdsc in bundle.sdscs.items()}
    files |= read_given_launch_spec(bundle.directory)
    files[MODULE_FILE] = print_module(bundle.module).encode()
    return BundleFiles(bundle.directory, MODULE_FILE, files)


def _compiled(bundle: Bundle, files: BundleFiles) -> CompiledBundle:
    program, operations = bundle.program, dict(bundle.operations)
    findings = bundle.check()
    if any(f.severity is Severity.ERROR for f in findings):
        raise ValidationError(findings)
    spec = None
    if (data := files.files.get(LAUNCH_SPEC_FILE)) is not None:
        spec = parse_launch_spec(data, bundle.path_of(LAUNCH_SPEC_FILE))
    return CompiledBundle(
        files.digest,
        bundle.directory,
        program,
        operations,
        findings,
        spec,
        tuple(map(symbol_kind, program.parameters)),
    )


# --- plans ------------------------------------------------------------------------------------


def dump_plan(kernel: CompiledBundle) -> bytes:
    """The plan of a kernel whose ``directory`` is :data:`PLACEHOLDER`."""
    assert str(kernel.directory) == PLACEHOLDER
    state = (
        kernel.program,
        kernel.operations,
        kernel.findings,
        kernel.launch_spec,
        kernel.symbols,
    )
    file = io.BytesIO()
    _PlanPickler(file, pickle.HIGHEST_PROTOCOL).dump(state)
    return file.getvalue()


def load_plan(data: bytes, digest: str, directory: Path) -> CompiledBundle:
    """The kernel of a plan, its places in ``directory``. ``data`` has to be trusted: a pickle."""
    return CompiledBundle(digest, directory, *_PlanUnpickler(io.BytesIO(data), directory).load())


class _PlanPickler(pickle.Pickler):
    """Every text with the placeholder is stored as a reference, which the loader fills in."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self._texts: dict[str, str] = {}

    def persistent_id(self, obj: Any) -> str | None:
        """The text itself where it names the directory."""
        if type(obj) is str and PLACEHOLDER in obj:
            return self._texts.setdefault(obj, obj)
        return None


class _PlanUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, directory: Path) -> None:
        super().__init__(file)
        self._directory = directory
        self._texts: dict[str, str] = {}

    def persistent_load(self, pid: str) -> str:
        """The text with the real directory, spelled as `pathlib` does."""
        text = self._texts.get(pid)
        if text is None:
            inside = str(self._directory / "x")[:-1]
            text = pid.replace(f"{PLACEHOLDER}/", inside).replace(PLACEHOLDER, str(self._directory))
            self._texts[pid] = text
        return text
