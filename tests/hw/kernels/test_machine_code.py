"""The cache of compiled kernels, and failures to write it."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest
from numba.core.compiler_lock import global_compiler_lock

from spyre import cache as cache_module
from spyre.cache import warn_once
from spyre.hw import plan_table as tb
from spyre.hw.kernels import jit, machine_code
from spyre.hw.kernels.machine_code import PLACES, Entry
from tests.interrupts import interrupted_at, interruptible

KERNELS = "spyre.hw.kernels.families.elementwise"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Every test finds the directory anew; so do the kernels that load after them."""
    _forget_now()
    yield
    _forget_now()


def _forget_now() -> None:
    for function in (
        machine_code.cache_directory, machine_code.target, machine_code.x86_level,
        machine_code.warn_damaged, machine_code._key, warn_once,
    ):  # fmt: skip
        function.cache_clear()


def test_the_directory_is_keyed_by_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "cache"))
    directory = machine_code.cache_directory(KERNELS)
    assert directory is not None
    assert Path(directory).parent == tmp_path / "cache"
    assert Path(directory).is_dir()
    monkeypatch.setenv("SPYRE_VECTOR_WIDTH", "8")
    _forget_now()
    assert machine_code.cache_directory(KERNELS) != directory


COMPILE = """
from spyre.hw.kernels.machine_code import entry_of
entry_of("pool.run_job").address
"""
"""A function that compiles in a second."""


def test_installations_of_the_same_sources_share_kernels(tmp_path: Path) -> None:
    """A newer copy of the package in another place loads the kernels that the first compiled."""
    compile_in(machine_code.PACKAGE.parent, tmp_path / "cache")
    compiled = files_in(tmp_path / "cache")
    shutil.copytree(
        machine_code.PACKAGE,
        tmp_path / "copy" / "spyre",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for source in (tmp_path / "copy").rglob("*.py"):
        os.utime(source)
    compile_in(tmp_path / "copy", tmp_path / "cache")
    assert compiled
    assert files_in(tmp_path / "cache") == compiled


def compile_in(installation: Path, cache: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installation), "SPYRE_CACHE_DIR": str(cache)}
    code = f"import spyre; assert spyre.__file__.startswith({str(installation)!r})" + COMPILE
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=cache.parent, check=True)


def files_in(cache: Path) -> dict[str, int]:
    kept = [path for path in cache.glob("kernels-*/**/*") if path.is_file()]
    return {str(path): path.stat().st_mtime_ns for path in kept}


def test_kernels_used_longest_ago_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache_module, "MAX_KERNEL_BYTES", 2500)
    for age, key in enumerate("abc"):
        directory = cache_module.kernel_directory(key)
        assert directory is not None
        (directory / "code").write_bytes(bytes(1000))
        os.utime(directory, (1000 + age, 1000 + age))
    cache_module.kernel_directory("a")
    (tmp_path / "others").mkdir()
    cache_module.kernel_directory("d")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kernels-a",
        "kernels-c",
        "kernels-d",
        "others",
    ]


IMPORT_EACH = """
import importlib, os, sys, numba
for module in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        importlib.import_module(module)
        print(module, *(m for m in sys.modules if m.startswith("spyre")), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, module
"""


def test_the_key_covers_every_module_a_kernel_imports() -> None:
    """Compare the modules that Python imports with those found by the key's scan of sources."""
    paths = [path for path in Path(jit.__file__).parent.rglob("*.py") if path.stem != "__init__"]
    parts = [path.with_suffix("").relative_to(machine_code.PACKAGE).parts for path in paths]
    modules = [".".join(("spyre", *names)) for names in parts]
    command = [sys.executable, "-c", IMPORT_EACH, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = [line.split() for line in done.stdout.splitlines()]
    assert [module for module, *_ in imported] == modules
    for module, *names in imported:
        loaded = {machine_code._source(name) for name in names}
        packages = {path for path in loaded if path.stem == "__init__"}
        elsewhere = packages | {machine_code._source(name) for name in machine_code.WITHOUT_CODE}
        assert loaded - elsewhere <= set(machine_code.imported_sources(module)), module


def test_edits_elsewhere_compile_nothing() -> None:
    sources = {path.name for path in machine_code.imported_sources(KERNELS)}
    assert {"elementwise.py", "blocks.py", "intrinsics.py", "plan_table.py"} <= sources
    assert not sources & {"reduction.py", "linker.py", "core_plan.py", "families.py", "config.py"}


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache asked for is a file; the private directory that is used instead."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"spyre-cache-{os.geteuid()}"


@pytest.mark.parametrize("place", ["file/below", "file"])
def test_kernels_are_kept_in_a_private_directory_where_the_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: Path, place: str
) -> None:
    """One warning says so; what was compiled there is not compiled again."""
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / place))
    with pytest.warns(RuntimeWarning, match=f"SPY405: .*{place} .*: {private} is used") as warned:
        assert Entry(COPY).function(*nothing_to_copy()) == 0
    assert len(warned) == 1
    assert private.stat().st_mode & 0o777 == 0o700
    assert list(private.rglob("*.o"))
    _forget_now()
    monkeypatch.setattr(jit, "compile_object", None)
    with pytest.warns(RuntimeWarning, match="SPY405"):
        assert Entry(COPY).function(*nothing_to_copy()) == 0


def test_a_private_directory_that_others_may_write_to_is_not_used(private: Path) -> None:
    private.mkdir()
    private.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="SPY405: .*other users .*: nothing is kept") as warned:
        assert machine_code.cache_directory(KERNELS) is None
    assert len(warned) == 1
    assert Entry(COPY).function(*nothing_to_copy()) == 0
    assert not list(private.rglob("*.o"))


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("has_home", [False, True])
def test_without_a_usual_place_it_is_one_below_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_home: bool
) -> None:
    for name in ("SPYRE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.write_text("in the way")
    monkeypatch.setattr(Path, "home", (lambda: home) if has_home else no_home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="SPY405") if has_home else nullcontext():
        directory = machine_code.cache_directory(KERNELS)
    assert directory is not None
    place = tmp_path / f"spyre-cache-{os.geteuid()}"
    assert Path(directory).parent == place
    assert place.stat().st_mode & 0o777 == 0o700


LOAD_ALL = """
import sys
import numpy as np
from spyre.hw.device import Combiner
from spyre.hw.kernels.machine_code import PLACES, entry_of
from spyre.hw.numerics import Numerics
x = np.zeros(128, np.uint8)
Combiner("sum", "float32", Numerics()).combine(x, x, x)
Combiner("sum", "float32", Numerics()).add_once([x, x], x)
assert all(entry_of(name).address for name in PLACES)
print([name for name in sys.modules if name.partition(".")[0] == "numba"])
"""
RUN = "import spyre; spyre.run('examples/softmax', device=spyre.Device(threads=2, sanitize=True))"


def test_kept_kernels_load_without_numba() -> None:
    """All of them, and those of collectives, after a process that may have to compile."""
    for code in (LOAD_ALL, RUN + LOAD_ALL):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.decode().split() == ["[]"]


@pytest.mark.parametrize("count", [0, 5, 7])
def test_another_number_of_arguments_is_an_error(count: int) -> None:
    with pytest.raises(TypeError):
        Entry(COPY).function(*[0] * count)


def test_no_memory_is_an_error() -> None:
    """As an exception where Python calls, as a fault word where kernels do."""

    @jit.kernel
    def much(count: int):
        return np.zeros(count, np.int64)[0]

    calls, entry = compiled(much.py_func, (numba.int64,)), compiled(jit.entry(much_of_a_kernel))
    assert calls.function(8) == 0
    with pytest.raises(MemoryError):
        calls.function(1 << 58)
    run = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 6)(entry.address)
    assert run(0, 0, 0, 0, 0, 8) == 0
    assert run(0, 0, 0, 0, 0, 1 << 58) == tb.NO_MEMORY


@jit.kernel
def much_of_a_kernel(table, first, last):
    np.zeros(last, np.int64)[first] = first


def test_arrays_of_a_kernel_begin_with_a_cache_line() -> None:
    """A vector of 64 bytes that begins within a line would be read as two."""

    @jit.kernel
    def places(count: int):
        first, second = np.empty(count, np.float32), np.empty(count + 1, np.float32)
        return (first.ctypes.data | second.ctypes.data) % 64

    function = compiled(places.py_func, (numba.int64,)).function
    assert not any(function(count) for count in range(1, 200_000, 1023))


def compiled(function: Any, arguments: Any = None) -> Entry:
    """An entry of a function of this module."""
    name = f"{function.__module__}.{function.__qualname__}"
    entry = Entry(name)
    machine_code._engine().add_object_file(
        llvm.ObjectFileRef.from_data(jit.object_of(function, arguments, name)[0])
    )
    entry._address = machine_code._engine().get_function_address(name)
    return entry


def test_what_needs_numba_is_refused() -> None:
    """A kernel cannot be kept that formats text or draws random numbers."""

    def draw(first, last, table, bases, memory, scratch):
        return int(np.random.random() * 10)

    with pytest.raises(NotImplementedError, match="cannot be an object file: it needs numba_"):
        jit.object_of(draw, None, "draw")


COPY = PLACES["transfer.run_transfer"]


def nothing_to_copy() -> tuple[int, ...]:
    """Arguments of `COPY` for a kernel that returns 0."""
    return (idle().address, 0, 0, 0, 0, 1)


@cache
def idle() -> Any:
    @numba.cfunc(jit.ENTRY_SIGNATURE)
    def nothing(table, bases, memory, scratch, first, last):
        return 0

    return nothing


def test_a_function_is_compiled_with_what_it_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and no other is."""
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    assert Entry(COPY).function(*nothing_to_copy()) == 0
    assert [path.name.split("-")[0] for path in tmp_path.rglob("*.o")] == ["transfer.run_transfer"]
    monkeypatch.setattr(jit, "compile_object", None)
    assert Entry(COPY).function(*nothing_to_copy()) == 0
    assert gc.isenabled()


def test_what_came_with_the_package_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not copied either; kernels for another processor are not loaded."""
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "built"))
    assert Entry(COPY).address
    (built,) = (tmp_path / "built").rglob("*.o")
    monkeypatch.setattr(machine_code, "SHIPPED", tmp_path / "built")
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "empty"))
    _forget_now()
    monkeypatch.setattr(machine_code, "x86_level", lambda: "x86-64-v9")
    assert not Entry(COPY).is_ready
    built.rename(built.with_name("transfer.run_transfer-x86-64-v9.o"))
    loaded = Entry(COPY)
    assert loaded.is_ready
    monkeypatch.setattr(jit, "compile_object", None)
    assert loaded.function(*nothing_to_copy()) == 0
    assert not list((tmp_path / "empty").rglob("*.o"))
    monkeypatch.setattr(machine_code, "kernel_directory", lambda key: None)
    machine_code.cache_directory.cache_clear()
    assert Entry(COPY).function(*nothing_to_copy()) == 0  # where nothing can be kept, too


@pytest.mark.parametrize(
    ("missing", "level"), [("", "x86-64-v4"), ("avx512dq", "x86-64-v3"), ("fma", None)]
)
def test_shipped_code_is_that_of_the_hosts_level(
    monkeypatch: pytest.MonkeyPatch, missing: str, level: str | None
) -> None:
    features = dict.fromkeys(frozenset().union(*machine_code.LEVELS.values()), True)
    above = {"fma": machine_code.LEVELS["x86-64-v4"]}.get(missing, frozenset())
    there = {**features, **dict.fromkeys({missing, *above}, False)}
    monkeypatch.setattr(machine_code.llvm, "get_host_cpu_features", lambda: there)
    assert machine_code.x86_level() == level
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    _forget_now()
    assert machine_code.x86_level() is None
    assert machine_code.target() == "generic"


def test_code_is_kept_by_the_processor_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {machine_code.target()}
    for name, features in (("x86-64-v3", ""), ("haswell", "+avx2"), ("haswell", "+avx2,+fma")):
        monkeypatch.setenv("NUMBA_CPU_NAME", name)
        monkeypatch.setenv("NUMBA_CPU_FEATURES", features)
        _forget_now()
        found.add(machine_code.target())
    assert len(found) == 4
    assert "x86-64-v3" in found


def flipped(content: bytes) -> bytes:
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


def emptied(content: bytes) -> bytes:
    return b""


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize("damage", [emptied, truncated, flipped])
def test_a_damaged_file_is_compiled_again_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    assert Entry(COPY).address
    (file,) = tmp_path.rglob("*.o")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with pytest.warns(RuntimeWarning, match="damaged files among the compiled kernels") as warned:
        assert Entry(COPY).function(*nothing_to_copy()) == 0
    assert len(warned) == 1
    monkeypatch.setattr(jit, "compile_object", None)
    assert Entry(COPY).address


def test_a_full_disk_costs_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(machine_code, "atomic_write", full)
    with pytest.warns(RuntimeWarning, match="cannot be kept.*No space left") as warned:
        assert [Entry(COPY).function(*nothing_to_copy()) for _ in range(2)] == [0, 0]
    assert len(warned) == 1


@pytest.mark.parametrize("line", [500, 5000])
def test_ctrl_c_comes_when_a_kernel_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    """Within numba it would leave locks taken, and unreadable tracebacks."""
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    entry = Entry(COPY)
    with interruptible(), interrupted_at(line, "numba.") as moment:
        with pytest.raises(KeyboardInterrupt):
            _ = entry.address
        assert moment.came
    assert entry.is_loaded
    free = []
    thread = threading.Thread(target=lambda: free.append(_lock_is_free()))
    thread.start()
    thread.join()
    assert free == [True]
    assert entry.function(*nothing_to_copy()) == 0


def _lock_is_free() -> bool:
    lock = global_compiler_lock._lock
    is_free: bool = lock.acquire(blocking=False)
    if is_free:
        lock.release()
    return is_free


def test_two_threads_make_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method of a function that another one replaced would be freed memory."""
    entry, made, found = Entry(PLACES["fusion.find_chains"]), [], []
    make = machine_code._make_builtin

    def load() -> None:
        found.append(entry.function)

    assert entry.address
    monkeypatch.setattr(machine_code, "_make_builtin", lambda *given: _slowly(make(*given), made))
    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert found == [made[0], made[0]]


def _slowly(function: Any, made: list[Any]) -> Any:
    made.append(function)
    time.sleep(0.2)
    return function
