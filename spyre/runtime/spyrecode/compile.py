"""From a bundle directory to its SpyreCode directory: what ``spyre-compile --bundle`` does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from spyre.errors import Finding, JsonLocation, Severity, SpyreError
from spyre.mlir.bundle_source import MODULE_FILE
from spyre.runtime.arguments import spec_of_arguments
from spyre.runtime.bundle_arguments import read_arguments
from spyre.runtime.launch_spec import DERIVED_EMITTER, LAUNCH_SPEC_FILE, format_launch_spec
from spyre.runtime.spyrecode.bundle_code import make_code
from spyre.runtime.spyrecode.bundle_files import BundleFiles, read_bundle_files
from spyre.runtime.spyrecode.code_directory import write_code_directory
from spyre.runtime.spyrecode.commands import SpyreCode
from spyre.runtime.spyrecode.compiled_kernel import CompiledKernel
from spyre.runtime.spyrecode.init_binary import INIT_BINARY_FILE, pack_bundle
from spyre.runtime.spyrecode.plan_cache import load_compiled_files


@dataclass(frozen=True)
class Compiled:
    """What was compiled: the directory written, its plans, how many symbols, and warnings."""

    directory: Path
    code: SpyreCode
    n_symbols: int
    findings: tuple[Finding, ...]


def compile_directory(path: str | os.PathLike[str]) -> Compiled:
    """Write ``path``/spyreCodeDir from the bundle in ``path``.

    SpyreErrors of reading, ValidationError when the check finds errors, BundleError SPY845 when
    the directory cannot be written. Nothing is written unless the bundle compiles.
    """
    files = _bundle_files(path)
    kernel = load_compiled_files(files)
    binary = pack_bundle(files.files)
    spec, findings = _launch_spec(kernel, files)
    code = make_code(kernel.name, kernel.symbols, len(binary))
    directory = write_code_directory(files.directory, code, {INIT_BINARY_FILE: binary, **spec})
    return Compiled(directory, code, len(kernel.symbols), (*kernel.findings, *findings))


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
    kernel: CompiledKernel, files: BundleFiles
) -> tuple[dict[str, bytes], tuple[Finding, ...]]:
    """launch_spec.json as the bundle has it, else derived, else none; what was noticed."""
    if (given := files.files.get(LAUNCH_SPEC_FILE)) is not None:
        return {LAUNCH_SPEC_FILE: given}, ()
    try:
        arguments = read_arguments(kernel)
    except SpyreError as error:
        return {}, (_not_derived(kernel, error.finding),)
    symbolic = bool(kernel.symbols)
    spec = spec_of_arguments(arguments, kernel.name, symbolic, DERIVED_EMITTER)
    return {LAUNCH_SPEC_FILE: format_launch_spec(spec).encode()}, arguments.findings


def _not_derived(kernel: CompiledKernel, reason: Finding) -> Finding:
    """SPY846."""
    return Finding(
        "SPY846",
        Severity.WARNING,
        f"no {LAUNCH_SPEC_FILE} is written: {reason.message}",
        JsonLocation(str(kernel.directory / LAUNCH_SPEC_FILE)),
        expected=reason.expected,
        found=reason.found,
    )
