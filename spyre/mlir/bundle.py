"""A bundle directory as one value: the parsed bundle.mlir and its decoded SDSC files.

``load_bundle`` reads a directory, :meth:`Bundle.check` diagnoses it (the module's rules, the
SDSCs' rules, and the rules between them), ``write_bundle`` writes one. The runtime and
``spyre-run`` start here. Meaning: bundle format reference §1, §3.1 and §4.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from spyre.errors import BundleError, Finding, JsonLocation, Severity, ValidationError, has_errors
from spyre.files import atomic_write
from spyre.mlir.bundle_source import MODULE_FILE, BundleSource, DirectorySource
from spyre.mlir.operation import Operation, literal_addresses, shortened, unbound_symbols
from spyre.mlir.program import LoopProgram
from spyre.mlir.sdsc import Inspection, Sdsc, decode_sdsc, encode_sdsc, inspect_sdsc, read_operation
from spyre.mlir.text import ExecuteOp, Module, ModuleInspection, inspect_module

if TYPE_CHECKING:
    from spyre.mlir.builder import BuiltBundle


class Bundle(msgspec.Struct, frozen=True, dict=True):
    """A loaded bundle: ``sdscs`` by the file name the execute statements use.

    ``unexecuted``: names of SDSC files in the directory that no statement executes.
    ``extra_files``: further files that `write_bundle` writes; `load_bundle` leaves it empty.
    """

    directory: Path
    module: Module
    sdscs: Mapping[str, Sdsc]
    unexecuted: tuple[str, ...] = ()
    extra_files: Mapping[str, bytes] = msgspec.field(default_factory=dict)

    @cached_property
    def module_inspection(self) -> ModuleInspection:
        """Findings on the module alone, and its program."""
        return inspect_module(self.module)

    @property
    def program(self) -> LoopProgram:
        """The module lowered; ValidationError when its structure is wrong."""
        return self.module_inspection.program

    @cached_property
    def operations(self) -> Mapping[str, Operation]:
        """The operation of every SDSC. SdscError or UnsupportedError at the first that has none."""
        return {name: self.operation(name) for name in self.sdscs}

    def operation(self, filename: str) -> Operation:
        """The operation of one SDSC file (made once)."""
        inspected = self.inspections[filename].operation
        if inspected is not None:
            return inspected
        return read_operation(self.sdscs[filename], self.path_of(filename))

    @cached_property
    def inspections(self) -> Mapping[str, Inspection]:
        """Findings and operation of every SDSC file."""
        return {name: inspect_sdsc(sdsc, self.path_of(name)) for name, sdsc in self.sdscs.items()}

    def path_of(self, filename: str) -> str:
        """Return the name of a file of the bundle in diagnostics."""
        return str(self.directory / filename)

    def check(self, raise_on_error: bool = False) -> tuple[Finding, ...]:
        """All findings: module, SDSCs in order of first execution, then between them.

        ``raise_on_error``: ValidationError with all of them if one is an error.
        """
        sdsc_findings = (f for i in self.inspections.values() for f in i.findings)
        findings = (*self.module_inspection.findings, *sdsc_findings, *_cross_findings(self))
        if raise_on_error and has_errors(findings):
            raise ValidationError(findings)
        return findings


# --- reading ----------------------------------------------------------------------------------


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Reads a bundle from its directory, or from the path of its bundle.mlir.

    BundleError SPY270-SPY274 when files are missing or unreadable, SPY164 when a file name leaves
    the directory, MlirSyntaxError and SdscError when a file cannot be read.
    """
    module_path = _module_path(Path(path))
    return read_bundle(DirectorySource(module_path.parent, module_path.name))


def read_bundle(source: BundleSource) -> Bundle:
    """The bundle whose module and SDSC files ``source`` holds; errors as of `load_bundle`."""
    from spyre.mlir.text import parse_module  # not at the top: eager operations need no lark

    module_path = source.directory / source.module_name
    module = parse_module(_text(source.read(source.module_name), module_path), str(module_path))
    sdscs = _load_sdscs(source, module)
    unexecuted = tuple(n for n in source.sdsc_names() if n not in sdscs)
    return Bundle(source.directory, module, sdscs, unexecuted)


def _module_path(path: Path) -> Path:
    """Return the path of bundle.mlir for a directory or a file; BundleError SPY270 to SPY274."""
    # os.path returns False where pathlib raises: names that are too long, closed directories.
    if os.path.isdir(path):
        if not os.path.lexists(path / MODULE_FILE):
            message = f"{path} holds no {MODULE_FILE}"
            raise BundleError("SPY271", message, expected=MODULE_FILE, found=_listing(path))
        path = path / MODULE_FILE
    if os.path.isfile(path):
        return path
    expected = "a directory, or the path of a bundle.mlir"
    if os.path.lexists(path):  # a pipe would be waited for
        found = "no regular file"
        raise BundleError("SPY274", f"{path} cannot be read", expected=expected, found=found)
    raise BundleError("SPY270", f"{path} does not exist", expected=expected)


def _listing(directory: Path) -> str:
    try:
        return ", ".join(sorted(os.listdir(directory))[:8]) or "an empty directory"
    except OSError as error:
        return str(error.strerror)


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BundleError(
            "SPY274", f"{path} is not UTF-8 text", found=f"byte {error.start}: {error.reason}"
        ) from None


def _load_sdscs(source: BundleSource, module: Module) -> dict[str, Sdsc]:
    sdscs: dict[str, Sdsc] = {}
    for execute in module.executes():
        name = execute.sdsc_filename
        if name not in sdscs:
            pure = _sdsc_name(source, module, execute)
            sdscs[name] = decode_sdsc(source.read(pure), str(source.directory / pure))
    return sdscs


def _sdsc_name(source: BundleSource, module: Module, execute: ExecuteOp) -> str:
    """The file an execute names, in its plain spelling."""
    name = execute.sdsc_filename
    location = module.locate(execute.position)
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name:
        message = "the SDSC file name leaves the bundle directory"
        expected = "a name relative to the directory of bundle.mlir"
        raise BundleError("SPY164", message, location, expected=expected, found=repr(name))
    if not source.holds(str(pure)):
        present = ", ".join(source.sdsc_names()[:8])
        message = f"{name} does not exist"
        expected = f"a file in {source.directory}"
        raise BundleError("SPY272", message, location, expected=expected, found=present or "none")
    return str(pure)


# --- checks between the files -----------------------------------------------------------------


def _cross_findings(bundle: Bundle) -> Iterator[Finding]:
    judged: set[str] = set()
    types = (parameter.type for parameter in bundle.module.function.parameters)
    # Where the arguments' addresses are parameters, segments name no argument.
    takes_addresses = any(given is not None and not given.is_size for given in types)
    for execute in bundle.module.executes():
        name = execute.sdsc_filename
        operation = bundle.inspections[name].operation
        if operation is None:
            continue
        if name not in judged and takes_addresses:
            for literal in literal_addresses(operation, name):
                place = JsonLocation(bundle.path_of(name), literal.place.json_path)
                yield literal.finding(Severity.ERROR, place)
        judged.add(name)
        for unbound in unbound_symbols(operation, name, execute.symbol_ids):
            yield unbound.finding(Severity.ERROR, bundle.module.locate(execute.position))
        yield from _unused(bundle, execute, operation)
    yield from _same_names(bundle)
    for name in bundle.unexecuted:
        place = JsonLocation(bundle.path_of(name))
        yield Finding("SPY277", Severity.WARNING, f"{name} is never executed", place)


def _unused(bundle: Bundle, execute: ExecuteOp, operation: Operation) -> Iterator[Finding]:
    used = set(operation.symbol_ids)
    unused = tuple(symbol for symbol in execute.symbol_ids if symbol not in used)
    if unused:
        yield Finding(
            "SPY276",
            Severity.WARNING,
            f"{execute.sdsc_filename} does not use {len(unused)} of the symbols bound",
            bundle.module.locate(execute.position),
            expected=f"ids among {shortened(operation.symbol_ids)}",
            found=shortened(unused),
        )


def _same_names(bundle: Bundle) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for filename, sdsc in bundle.sdscs.items():
        earlier = first.setdefault(sdsc.name, filename)
        if earlier != filename:
            message = f"SDSC {sdsc.name} is also the name of {earlier}"
            place = JsonLocation(bundle.path_of(filename))
            yield Finding("SPY279", Severity.WARNING, message, place, "distinct names")


# --- writing ----------------------------------------------------------------------------------


BundleContents: TypeAlias = "Bundle | BuiltBundle"


def write_bundle(bundle: BundleContents, directory: str | os.PathLike[str]) -> Path:
    """Writes a bundle directory (made if need be), bundle.mlir last, each file atomically.

    Returns the directory. Files already there under other names stay.
    """
    from spyre.mlir.text import print_module

    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    sdscs = {name: encode_sdsc(sdsc) for name, sdsc in bundle.sdscs.items()}
    module = print_module(bundle.module).encode()
    for name, data in {**sdscs, **bundle.extra_files, MODULE_FILE: module}.items():
        with atomic_write(target / name) as temporary:
            temporary.write_bytes(data)
    return target
