"""How kernels are compiled: numba options, the cache directory, the entry signature.

Without fast math: LLVM may then neither reassociate nor fuse nor take estimates, so that every
processor computes the same bits; products and sums are fused only by `.intrinsics.multiply_add`.

numba's disk cache does not notice edits in other modules, so every module's functions are cached in
a directory keyed by a hash of that module and all modules of this package it imports, directly or
not; installations of the same sources share it. The code of a truncated file (power failure, full
disk) is compiled again.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import os
import pickle
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import carray, types
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    NullCache,
    UserProvidedCacheLocator,
)
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.runtime import rtsys

from spyre import config
from spyre.cache import (
    PACKAGE,
    digest_of_found_sources,
    kernel_directory,
    read_kept,
    require_trusted,
    warn_uncached,
)
from spyre.hw.kernels import intrinsics
from spyre.hw.kernels.intrinsics import x86_level
from spyre.hw.kernels.progress import compile_progress
from spyre.hw.plan_table import entry_source
from spyre.interrupts import interrupts

TESTED_VERSIONS = ("0.68.1",)

_DIGEST_BYTES = hashlib.sha256().digest_size

SHIPPED = PACKAGE / "prebuilt"
"""What ``python -m tools.prebuilt`` compiled before the wheel was built, laid out as the cache."""


def shipped_key(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key of shipped code for the host's level of x86-64.

    ``key``: numba's: signature, target (system, processor, features), hashes of the bytecode.
    """
    signature, (system, _, _), code = key
    return signature, (system, x86_level(), ""), code


class CheckedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """numba's cache files of one function; damaged files count as missing.

    A damaged index would fail in numba at every start, and damaged machine code would run, so code
    begins with its SHA-256. Missing code is looked for in `SHIPPED`.
    """

    def load(self, key: tuple[Any, ...]) -> Any:
        found = super().load(key)
        shipped = SHIPPED / Path(self._cache_path).name
        if found is not None or self._cache_path == str(shipped) or not shipped.is_dir():
            return found
        return self._at(shipped).load(shipped_key(key))

    def _at(self, directory: Path) -> CheckedFiles:
        """Files of the same function there."""
        base = self._index_name.removesuffix(".nbi")
        return CheckedFiles(str(directory), base, self._source_stamp)

    def lists(self, key: tuple[Any, ...] | None = None) -> bool:
        """True if the index has code for ``key``, for None any code; it may still turn out to be
        damaged.
        """
        index, shipped = self._load_index(), SHIPPED / Path(self._cache_path).name
        there = self._at(shipped)._load_index() if shipped.is_dir() else {}
        if key is None:
            return bool(index or there)
        return key in index or (bool(there) and shipped_key(key) in there)

    def _load_index(self) -> Any:
        if not os.path.isfile(self._index_path):  # a pipe would be waited for
            return {}
        try:
            require_trusted(self._index_path)
            return super()._load_index()
        except MemoryError:
            raise
        except PermissionError:
            return {}
        except Exception:  # unpickling damaged bytes can raise anything
            warn_damaged()
            return {}

    def _load_data(self, name: str) -> Any:
        """OSError, which numba takes as no file, where it is damaged or cannot be used."""
        content = read_kept(self._data_path(name))
        digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != digest:
            warn_damaged()
            raise OSError
        return pickle.loads(data)

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(content).digest() + content)


@cache
def warn_damaged() -> None:
    """Once, however many files there are."""
    warnings.warn(
        f"damaged files among the compiled kernels in {config.cache_directory()}: what they held "
        "is compiled again",
        RuntimeWarning,
        stacklevel=2,
    )


F = TypeVar("F", bound=Callable[..., Any])

ENTRY_SIGNATURE = types.int64(*([types.int64] * 6))
"""entry(table, bases, memory, scratch: pointers; first, last: units) -> 0 or fault word."""
_ENTRY = ENTRY_SIGNATURE.args, ENTRY_SIGNATURE.return_type

compile_progress()

_compiling = threading.RLock()
"""Held while garbage collection is off."""
_IMPORT = re.compile(r"^from ([\w.]+) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)


@cache
def _imports(module: str) -> tuple[str, ...]:
    """Modules of this package that the source of ``module`` names in its import statements.

    A name from the face of a folder is one of the module that the face has it from.
    """
    imported: list[str] = []
    for name, members in _import_statements(module):
        if name.partition(".")[0] == "spyre":
            homes = _offered(name)
            inner = (homes.get(member, f"{name}.{member}") for member in members)
            imported += [name, *(m for m in inner if _source(m).exists())]
    return tuple(dict.fromkeys(imported))


@cache
def _offered(folder: str) -> dict[str, str]:
    """The module of every name in the face of a folder (``__init__.pyi``); nothing of a module."""
    if _source(folder).suffix != ".pyi":
        return {}
    return {
        member: f"{folder}{name}" if name != "." else f"{folder}.{member}"
        for name, members in _import_statements(folder)
        for member in members
    }


def _import_statements(module: str) -> list[tuple[str, list[str]]]:
    """(module, names taken from it) of the import statements at the margin of a source."""
    return [
        (name, re.findall(r"\w+(?= as |,|$|\s)", re.sub(r" as \w+", "", in_brackets or on_line)))
        for name, in_brackets, on_line in _IMPORT.findall(_source(module).read_text())
    ]


def _source(module: str) -> Path:
    """The file of a module, which may not exist; of a folder its stub, where it has one."""
    base = PACKAGE.parent.joinpath(*module.split("."))
    if not base.is_dir():
        return base.with_suffix(".py")
    stub = base / "__init__.pyi"
    return stub if stub.exists() else base / "__init__.py"


WITHOUT_CODE = frozenset(
    {"spyre.cache", "spyre.config", "spyre.files", "spyre.hw.kernels.progress", "spyre.interrupts"}
)
"""Modules that locate or report compiled code. Their content does not change it: the one setting
that does is part of the key."""


def imported_sources(module: str) -> tuple[Path, ...]:
    """Source of ``module`` and of everything it imports from this package, sorted; without
    `WITHOUT_CODE`.
    """
    seen, rest = {module}, [module]
    while rest:
        new = [name for name in _imports(rest.pop()) if name not in seen | WITHOUT_CODE]
        seen.update(new)
        rest += new
    return tuple(sorted(_source(name) for name in seen))


@cache
def cache_directory(module: str) -> str | None:
    """Cache directory of ``module`` with its sources and this numba version, made if missing.

    None, with one warning, where it cannot be made: kernels then compile anew in every process.
    """
    sources = digest_of_found_sources(module, lambda: map(str, imported_sources(module)))
    key = f"{numba.__version__} {sources} {config.VECTOR_WIDTH.read()}"
    directory = kernel_directory(hashlib.sha256(key.encode()).hexdigest()[:16])
    return None if directory is None else str(directory)


class SourceKeyedFormat(CompileResultCacheImpl, UserProvidedCacheLocator):  # type: ignore[misc]
    """How and where numba keeps the code of a function: in the directory of its sources, whose hash
    is in the name in place of path and time of the source file.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._py_file, self._lineno = inspect.getfile(function), function.__code__.co_firstlineno
        self._cache_path = cache_directory(function.__module__)
        self._locator = self
        name = f"{Path(self._py_file).stem}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, getattr(sys, "abiflags", ""))


class CodeCache(FunctionCache):  # type: ignore[misc]
    """numba's disk cache of one function, without damaged files and those that are not writable."""

    _impl_class = SourceKeyedFormat

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = CheckedFiles(self._cache_path, self._impl.filename_base, b"")

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Load the code of a signature, where that is safe without numba's implementations."""
        if numba.__version__ not in TESTED_VERSIONS:
            return super().load_overload(signature, target_context)
        rtsys.initialize(target_context)
        found = None
        with self._guard_against_spurious_io_errors():
            found = self._load_overload(signature, target_context)
        if found is None:
            target_context.refresh()
        return found

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        """A kernel that cannot be read or kept is one that has to be compiled."""
        try:
            yield
        except OSError as error:
            warn_uncached(error.strerror or str(error))

    def lists(self, signature: Any = None) -> bool:
        """True if there is code for a signature, for None any code."""
        with self._guard_against_spurious_io_errors():
            codegen = cpu_target.target_context.codegen()
            key = None if signature is None else self._index_key(signature, codegen)
            return self._cache_file.lists(key)
        return False


def code_cache(function: Callable[..., Any]) -> CodeCache | None:
    """The disk cache of a function of this package; None where its code cannot be kept."""
    inside = function.__module__.partition(".")[0] == __package__.partition(".")[0]
    return CodeCache(function) if inside and cache_directory(function.__module__) else None


def is_kept(function: Callable[..., Any], signature: Any = None) -> bool:
    """Whether code of a function, for a signature or any, is on the disk."""
    cache = code_cache(function)
    return cache is not None and cache.lists(signature)


class LinkedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function as kernels call it: linked into each of them, never run by itself.

    No machine code is generated for it, and its environment, which serves Python objects, is
    unused.
    """

    @property
    def codegen(self) -> LinkedLibrary:
        """The object that numba sets environments on."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Ignore it: nothing runs with it."""

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class LinkedCompiler(Compiler):  # type: ignore[misc]
    """numba's, into a `LinkedLibrary`."""

    def compile_extra(self, function: Any) -> Any:
        self.state.library = LinkedLibrary(self.state.targetctx.codegen(), function.__qualname__)
        return super().compile_extra(function)


_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}
_LINKED = {"pipeline_class": LinkedCompiler, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class CachedFunction(CPUDispatcher):  # type: ignore[misc]
    """A function (of arrays and integers only) that numba compiles, cached on disk.

    Called from Python it is machine code; called by another kernel it is compiled into that one.
    """

    _cache: Any

    def compile(self, signature: Any) -> Any:
        # interrupted, numba would leave its locks held
        with interrupts, _collecting_later():
            if isinstance(self._cache, NullCache):
                self._cache = code_cache(self.py_func) or self._cache
            return super().compile(signature)

    @cached_property
    def _linked(self) -> Any:
        """The function as other kernels call it."""
        return numba.njit(**_OPTIONS, **_LINKED)(self.py_func)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        if numba.__version__ not in TESTED_VERSIONS:
            return super().get_call_template(args, kws)
        # for the types of the arguments, not for their constant values: LLVM propagates these once
        # the function is inlined
        return self._linked.get_call_template(tuple(map(types.unliteral, args)), kws)

    def get_overload(self, signature: Any) -> Any:
        if numba.__version__ not in TESTED_VERSIONS:
            return super().get_overload(signature)
        return self._linked.get_overload(signature)


def kernel(function: F) -> F:
    """Compile a kernel body when it is first called, see `CachedFunction`."""
    options = {"nopython": True, **_OPTIONS}
    return CachedFunction(function, targetoptions=options)


@contextmanager
def _collecting_later() -> Iterator[None]:
    """Turn off garbage collection: a compilation makes a million objects, few of them garbage, and
    collection takes a sixth of its time.
    """
    with _compiling:
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if is_collecting:
                gc.enable()


def inline(function: F) -> F:
    """Compile a small function that is inlined into the kernels calling it."""
    result: F = numba.njit(inline="always", error_model="numpy")(function)
    return result


class Entry:
    """A kernel's C entry point with :data:`ENTRY_SIGNATURE`, compiled when first asked for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Any = None

    @property
    def address(self) -> int:
        """Host address of the machine code, which stays as long as this object."""
        if self._compiled is None:
            # one thread compiles: the code of a second compilation would be freed with it
            with interrupts, _collecting_later():
                if self._compiled is None:
                    callback: Any = CFunc(self._function, _ENTRY, {}, {"nopython": True})
                    callback._cache = code_cache(self._function) or callback._cache
                    callback.compile()
                    self._compiled = callback
            interrupts.poll()
        address: int = self._compiled.address
        return address

    @property
    def is_loaded(self) -> bool:
        """Whether there is machine code in this process."""
        return self._compiled is not None

    @property
    def is_ready(self) -> bool:
        """Whether there is machine code, in this process or on the disk."""
        return self.is_loaded or is_kept(self._function, ENTRY_SIGNATURE)


def entry(kernel: Callable[..., Any], reports_faults: bool = False) -> Entry:
    """The C entry of a function under `kernel`, cached on disk; see `entry_source`."""
    function = kernel.py_func  # type: ignore[attr-defined]
    name, code = f"run_{function.__name__}", function.__code__
    source = entry_source(name, code.co_varnames[: code.co_argcount], reports_faults)
    pointers = {key: value for key, value in vars(intrinsics).items() if key.startswith("pointer_")}
    names = {**pointers, "carray": carray, "kernel": kernel, "__name__": function.__module__}
    # the file is where numba's cache looks for it
    exec(compile(source, code.co_filename, "exec"), names)
    return Entry(names[name])
