"""Compile a bundle directory into its SpyreCode directory, for ``spyre-compile --bundle``.

Plan shapes are those of the runtime reference (§5): allocate and transfer the binary; then, for a
program with parameters, pack their values on the host, transfer them behind the binary, compute.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from spyre.errors import Finding, JsonLocation, Severity, SpyreError
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.bundle_source import MODULE_FILE, BundleFiles
from spyre.runtime.program import (
    DERIVED_EMITTER,
    LAUNCH_SPEC_FILE,
    CompiledBundle,
    SymbolKind,
    compile_files,
    format_launch_spec,
    read_bundle_files,
)
from spyre.runtime.spyrecode.code_directory import write_code_directory
from spyre.runtime.spyrecode.commands import (
    PROGRAM_BASE,
    SYMBOL_BYTES,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    Direction,
    Hcm,
    InitTransfer,
    SpyreCode,
)
from spyre.runtime.spyrecode.init_binary import INIT_BINARY_FILE, pack_bundle

CORRECTION = "correction"
"""Name of the host buffer with the symbols' values."""


def make_code(name: str, symbols: Sequence[SymbolKind], binary_bytes: int) -> SpyreCode:
    """The plans of a program with ``symbols`` whose binary has ``binary_bytes`` (whole sticks)."""
    # one int64 per symbol, whole sticks
    correction_bytes = -(-len(symbols) * SYMBOL_BYTES // STICK_BYTES) * STICK_BYTES
    transfer = InitTransfer(INIT_BINARY_FILE, PROGRAM_BASE, binary_bytes)
    compute = ComputeOnDevice(PROGRAM_BASE, name)
    if not symbols:
        return SpyreCode(binary_bytes, (transfer,), (compute,))
    execution = (
        ComputeOnHost(
            ihandle="",
            ishape=(len(symbols),),
            ohandle=CORRECTION,
            size_bytes=correction_bytes,
            hcm=Hcm(vdci={}, symbols=tuple(symbols)),
        ),
        DataTransfer(Direction.H2D, CORRECTION, correction_bytes, PROGRAM_BASE + binary_bytes),
        compute,
    )
    return SpyreCode(binary_bytes + correction_bytes, (transfer,), execution)


class CompiledDirectory(msgspec.Struct, frozen=True):
    """A compiled bundle: the written directory, its code, number of symbols, and warnings."""

    directory: Path
    code: SpyreCode
    n_symbols: int
    findings: tuple[Finding, ...]


def compile_directory(path: str | os.PathLike[str]) -> CompiledDirectory:
    """Write ``path``/spyreCodeDir from the bundle in ``path``.

    SpyreErrors of reading, ValidationError when the check finds errors, BundleError SPY845 when
    the directory cannot be written. Nothing is written unless the bundle compiles.
    """
    from spyre.runtime.program import load_compiled_files

    files = _bundle_files(path)
    kernel = load_compiled_files(files)
    return _write(kernel, files, *_launch_spec(kernel, files))


def compile_for_frontend(
    path: str | os.PathLike[str], keep_plan: bool = False
) -> CompiledDirectory:
    """Like `compile_directory`, for a frontend that knows the arguments of its many kernels.

    No launch_spec.json is derived. ``keep_plan``: store the plan, or use a stored one. This pays in
    the process that launches the kernel; another process needs longer to load the modules for it
    than the first one to make the plan. The checks are the same.
    """
    files = _bundle_files(path)
    if keep_plan:
        from spyre.runtime.program import load_compiled_files

        kernel = load_compiled_files(files)
    else:
        kernel = compile_files(files)
    return _write(kernel, files, _given_launch_spec(files), ())


def _write(
    kernel: CompiledBundle,
    files: BundleFiles,
    spec: dict[str, bytes],
    findings: tuple[Finding, ...],
) -> CompiledDirectory:
    binary = pack_bundle(files.files)
    code = make_code(kernel.name, kernel.symbols, len(binary))
    directory = write_code_directory(files.directory, code, {INIT_BINARY_FILE: binary, **spec})
    return CompiledDirectory(directory, code, len(kernel.symbols), (*kernel.findings, *findings))


def _bundle_files(path: str | os.PathLike[str]) -> BundleFiles:
    """All files of the bundle, its module under the name bundle.mlir."""
    files = read_bundle_files(path)
    if files is None or not files.is_complete:
        from spyre.mlir.bundle import load_bundle

        files = read_bundle_files(path, executed=load_bundle(path).sdscs)
        assert files is not None
    renamed = {
        MODULE_FILE if name == files.module_name else name: data
        for name, data in files.files.items()
    }
    return BundleFiles(files.directory, MODULE_FILE, renamed)


def _launch_spec(
    kernel: CompiledBundle, files: BundleFiles
) -> tuple[dict[str, bytes], tuple[Finding, ...]]:
    """Return the bundle's launch_spec.json, or a derived one, or none; and findings."""
    if given := _given_launch_spec(files):
        return given, ()
    from spyre.runtime.arguments import read_arguments, spec_of_arguments

    try:
        arguments = read_arguments(kernel)
    except SpyreError as error:
        reason = error.finding
        missing = Finding(
            "SPY846",
            Severity.WARNING,
            f"no {LAUNCH_SPEC_FILE} is written: {reason.message}",
            JsonLocation(str(kernel.directory / LAUNCH_SPEC_FILE)),
            expected=reason.expected,
            found=reason.found,
        )
        return {}, (missing,)
    symbolic = bool(kernel.symbols)
    spec = spec_of_arguments(arguments, kernel.name, symbolic, DERIVED_EMITTER)
    return {LAUNCH_SPEC_FILE: format_launch_spec(spec).encode()}, arguments.findings


def _given_launch_spec(files: BundleFiles) -> dict[str, bytes]:
    text = files.files.get(LAUNCH_SPEC_FILE)
    return {} if text is None else {LAUNCH_SPEC_FILE: text}
