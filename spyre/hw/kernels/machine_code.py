"""Compiled kernels on the disk and in this process: object files, their keys, their loading.

numba is imported only to compile (:mod:`.jit`): a process that finds an object file for its
processor loads it with LLVM. A file begins with the SHA-256 of its content; damaged ones are
compiled again.

Every module's functions are cached in a directory keyed by a hash of that module and all modules of
this package it imports, directly or not; installations of the same sources share it.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib.util
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from spyre import cache as cache_on_disk, config
from spyre.cache import PACKAGE, digest_of_found_sources, kernel_directory, read_kept, warn_uncached
from spyre.files import atomic_write
from spyre.hw import plan_table as tb
from spyre.hw.kernels.progress import compile_progress
from spyre.interrupts import interrupts

_DIGEST_BYTES = hashlib.sha256().digest_size

SHIPPED = PACKAGE / "prebuilt"
"""What ``python -m tools.prebuilt`` compiled before the wheel was built, laid out as the cache."""

LEVELS = {
    "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    "x86-64-v3": frozenset({"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}),
}
"""Features of the levels of the x86-64 psABI, over those of the level before."""


# --- processors -------------------------------------------------------------------------------


@cache
def x86_level() -> str | None:
    """The highest of `LEVELS` that the host has; None of none, or where another target is chosen.

    A host with the features of the fourth level has those of the third.
    """
    if config.NUMBA_CPU_NAME.read() or config.NUMBA_CPU_FEATURES.is_set:
        return None
    features = llvm.get_host_cpu_features()
    there = {name for name, is_there in features.items() if is_there}
    return next((level for level, needed in LEVELS.items() if needed <= there), None)


@cache
def target() -> str:
    """Name of the processor compiled for, with a hash of the features that are not in its name."""
    name, features = config.NUMBA_CPU_NAME.read(), config.NUMBA_CPU_FEATURES.read()
    if not config.NUMBA_CPU_FEATURES.is_set and name.lower() != "generic":
        features = llvm.get_host_cpu_features().flatten()
    digest = hashlib.sha256(features.encode()).hexdigest()[:8]
    return (name or llvm.get_host_cpu_name()) + (f"-{digest}" if features else "")


# --- sources ----------------------------------------------------------------------------------

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
    {
        "spyre.cache",
        "spyre.config",
        "spyre.files",
        "spyre.hw.kernels.machine_code",
        "spyre.hw.kernels.progress",
        "spyre.interrupts",
    }
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


def _sources(module: str) -> list[str]:
    """Files that decide the code of ``module``: its sources, and that with numba's version."""
    numba = os.path.dirname(getattr(importlib.util.find_spec("numba"), "origin", ""))
    return [os.path.join(numba, "_version.py"), *map(str, imported_sources(module))]


@cache
def _key(module: str) -> str:
    """The key of the compiled functions of ``module``: its sources and this numba version."""
    sources = digest_of_found_sources(module, lambda: _sources(module))
    key = f"{sources} {config.VECTOR_WIDTH.read()} {object.__basicsize__}"
    return hashlib.sha256(key.encode()).hexdigest()[:16]


@cache
def cache_directory(module: str) -> Path | None:
    """Cache directory of ``module``, made if missing; None, with one warning, where none can be."""
    return kernel_directory(_key(module))


# --- files ------------------------------------------------------------------------------------


def _places(place: str) -> Iterator[Path]:
    """Where the object file of a function may be: in the cache, then in `SHIPPED`."""
    module, _, name = place.rpartition(".")
    directory, base = cache_directory(module), f"{module.rpartition('.')[2]}.{name}"
    if directory is not None:
        yield directory / f"{base}-{target()}.o"
    if level := x86_level():
        yield SHIPPED / f"{cache_on_disk.KERNELS}{_key(module)}" / f"{base}-{level}.o"


def read_object(place: str) -> bytes:
    """The object file of a function; empty if there is none that can be used."""
    return next(filter(None, map(_read, _places(place))), b"")


def _read(path: Path) -> bytes:
    """The content behind its digest; empty where it is missing, damaged or of other users."""
    try:
        content = read_kept(path)
    except (FileNotFoundError, PermissionError):
        return b""
    except OSError as error:
        warn_uncached(error.strerror or str(error))
        return b""
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(code).digest() == digest:
        return code
    warn_damaged()
    return b""


def keep_object(place: str, code: bytes, module: bytes) -> None:
    """Write the object file of a function, and beside it the LLVM ``module`` it was made of."""
    if cache_directory(place.rpartition(".")[0]) is None:
        return
    path = next(_places(place))
    try:
        for target, content in ((path.with_suffix(".bc"), module), (path, code)):
            with atomic_write(target) as temporary:
                temporary.write_bytes(hashlib.sha256(content).digest() + content)
    except OSError as error:
        warn_uncached(error.strerror or str(error))


@cache
def warn_damaged() -> None:
    """Once, however many files there are."""
    warnings.warn(
        f"damaged files among the compiled kernels in {cache_on_disk.directory()}: what they held "
        "is compiled again",
        RuntimeWarning,
        stacklevel=2,
    )


# --- loading ----------------------------------------------------------------------------------

_compiling = threading.RLock()
"""Held while code is loaded, or compiled with garbage collection off."""


@contextmanager
def collecting_later() -> Iterator[None]:
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


@cache
def _engine() -> Any:
    """LLVM's loader of object files in this process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


_FASTCALL = 0x80
_make_builtin = ctypes.pythonapi.PyCFunction_NewEx
_make_builtin.argtypes = ctypes.POINTER(_Method), ctypes.c_void_p, ctypes.c_void_p
_make_builtin.restype = ctypes.py_object


class Entry:
    """Machine code of the function ``place`` (module and name), found on the disk or compiled when
    first asked for: a kernel's C entry, or one that Python calls.

    ``loaded``: `function`, once it was asked for.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._address = 0
        self.loaded: Callable[..., Any] | None = None
        self._method = _Method()

    @property
    def address(self) -> int:
        """Host address of the machine code, which stays."""
        if not self._address:
            # one thread compiles, and uninterrupted: numba would leave its locks held
            with interrupts, collecting_later():
                if not self._address:
                    self._address = self._load()
            interrupts.poll()
        return self._address

    def _load(self) -> int:
        code = read_object(self.place)
        if not code:
            from spyre.hw.kernels.jit import compile_object

            with compile_progress().compiling():
                code, module = compile_object(self.place)
            keep_object(self.place, code, module)
        _engine().add_object_file(llvm.ObjectFileRef.from_data(code))
        address: int = _engine().get_function_address(self.place)
        return address

    @property
    def function(self) -> Callable[..., Any]:
        """The same as a function of Python, for those that take its arguments."""
        if self.loaded is None:
            name, address = self.place.rpartition(".")[2].encode(), self.address
            with _compiling:  # of two threads' functions, one would outlive its method
                if self.loaded is None:
                    self._method = _Method(name, address, _FASTCALL, None)
                    self.loaded = _make_builtin(ctypes.byref(self._method), None, None)
        return self.loaded

    @property
    def is_loaded(self) -> bool:
        """Whether there is machine code in this process."""
        return self._address != 0

    @property
    def is_ready(self) -> bool:
        """Whether there is machine code, in this process or on the disk; that may be damaged."""
        return self.is_loaded or any(path.is_file() for path in _places(self.place))


TRANSFER = "transfer"
DRIVER = (
    "driver.drive", "driver.place_dispatches", "fusion.find_chains", "pool.run_job", "pool.serve",
    "transfer.run_transfer",
)  # fmt: skip
"""Functions that Python calls to link, relocate and run programs and copies."""
CHECKED_DRIVER = "checked_driver.drive_checked"
COMBINE, ADD_ALL = "families.elementwise.combine", "families.elementwise.add_all"
"""Functions that Python calls to reduce the images of several ranks."""
PLACES = {
    **tb.KERNELS,
    TRANSFER: "spyre.hw.kernels.transfer.run",
    **{name: f"spyre.hw.kernels.{name}" for name in (*DRIVER, CHECKED_DRIVER, COMBINE, ADD_ALL)},
}
_ENTRIES = {name: Entry(place) for name, place in PLACES.items()}


def entry_of(name: str) -> Entry:
    """The code of a kernel, of the copies, or of a function of the drivers."""
    return _ENTRIES[name]
