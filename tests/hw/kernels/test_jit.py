"""The cache of compiled kernels, and failures to write it."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import pytest
from numba.core.compiler_lock import global_compiler_lock

from spyre import cache
from spyre.cache import warn_uncached
from spyre.hw.kernels import intrinsics, jit
from spyre.hw.kernels.jit import TESTED_VERSIONS, CheckedFiles
from tests.interrupts import interrupted_at, interruptible

KERNELS = "spyre.hw.kernels.families.elementwise"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Every test finds the directory anew; so do the kernels that load after them."""
    _forget_now()
    yield
    _forget_now()


def _forget_now() -> None:
    jit.cache_directory.cache_clear()
    warn_uncached.cache_clear()
    jit.warn_damaged.cache_clear()


def test_the_directory_is_keyed_by_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "cache"))
    directory = jit.cache_directory(KERNELS)
    assert directory is not None
    assert Path(directory).parent == tmp_path / "cache"
    assert Path(directory).is_dir()
    monkeypatch.setenv("SPYRE_VECTOR_WIDTH", "8")
    _forget_now()
    assert jit.cache_directory(KERNELS) != directory


COMPILE = """
from spyre.hw.kernels.families.windowing import run
run.address
"""
"""A kernel that compiles in a second."""


def test_installations_of_the_same_sources_share_kernels(tmp_path: Path) -> None:
    """A newer copy of the package in another place loads the kernels that the first compiled."""
    compile_in(jit.PACKAGE.parent, tmp_path / "cache")
    compiled = files_in(tmp_path / "cache")
    shutil.copytree(
        jit.PACKAGE, tmp_path / "copy" / "spyre", ignore=shutil.ignore_patterns("__pycache__")
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
    monkeypatch.setattr(cache, "MAX_KERNEL_BYTES", 2500)
    for age, key in enumerate("abc"):
        directory = cache.kernel_directory(key)
        assert directory is not None
        (directory / "code").write_bytes(bytes(1000))
        os.utime(directory, (1000 + age, 1000 + age))
    cache.kernel_directory("a")
    (tmp_path / "others").mkdir()
    cache.kernel_directory("d")
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
    parts = [path.with_suffix("").relative_to(jit.PACKAGE).parts for path in paths]
    modules = [".".join(("spyre", *names)) for names in parts]
    command = [sys.executable, "-c", IMPORT_EACH, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = [line.split() for line in done.stdout.splitlines()]
    assert [module for module, *_ in imported] == modules
    for module, *names in imported:
        loaded = {jit._source(name) for name in names}
        packages = {path for path in loaded if path.stem == "__init__"}
        elsewhere = packages | {jit._source(name) for name in jit.WITHOUT_CODE}
        assert loaded - elsewhere <= set(jit.imported_sources(module)), module


def test_edits_elsewhere_compile_nothing() -> None:
    sources = {path.name for path in jit.imported_sources(KERNELS)}
    assert {"elementwise.py", "blocks.py", "intrinsics.py", "plan_table.py"} <= sources
    assert not sources & {"reduction.py", "linker.py", "core_plan.py", "families.py", "config.py"}


@pytest.mark.parametrize("place", ["file/below", "file"])
def test_without_a_place_kernels_compile_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / place))
    with pytest.warns(RuntimeWarning, match="compiled kernels cannot be kept"):
        assert jit.cache_directory(KERNELS) is None

    @jit.kernel
    def twice(x):
        return 2 * x

    assert twice(21) == 42


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("has_home", [False, True])
def test_without_a_usual_place_it_is_one_below_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_home: bool
) -> None:
    for name in ("SPYRE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    access, home = os.access, tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(Path, "home", (lambda: home) if has_home else no_home)
    monkeypatch.setattr(os, "access", lambda path, mode: path != home and access(path, mode))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = jit.cache_directory(KERNELS)
    assert directory is not None
    place = tmp_path / f"spyre-cache-{os.geteuid()}"
    assert Path(directory).parent == place
    assert place.stat().st_mode & 0o777 == 0o700
    assert list(home.iterdir()) == []


LOAD_ALL = """
import sys
import tempfile
from spyre.hw.kernels import checked_driver, driver, pool
from spyre.hw.plan_table import KERNEL_NAMES
from spyre.hw.linking.linked_program import entry_addresses
from spyre.hw.kernels.transfer import run
assert (entry_addresses(range(len(KERNEL_NAMES))) != 0).all() and run.address
print("light" if "numba.np.npyimpl" not in sys.modules else "all")
"""
COMPILE_MORE = """
import numba
@numba.njit
def joined(words):
    return "-".join([w.upper() for w in words])
assert joined(["a", "b"]) == "A-B"
"""
RUN = "import spyre; spyre.run('examples/softmax', device=spyre.Device(threads=2, sanitize=True))"


def test_kept_kernels_load_without_what_numba_compiles_with() -> None:
    """All of them, after a process that may have to compile."""
    light = numba.__version__ in TESTED_VERSIONS
    for code in (LOAD_ALL, LOAD_ALL + RUN, LOAD_ALL + COMPILE_MORE + RUN):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.decode().split() == ["light" if light else "all"]


def thrice(x):
    return 3 * x


thrice.__module__ = KERNELS  # functions of other packages are not kept in our cache


def test_what_a_kernel_calls_is_compiled_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and not by itself: that is left to a call from Python."""
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    called = jit.kernel(thrice)

    def caller(x):
        return called(x) + called(0) + 1

    caller.__module__ = KERNELS
    assert jit.kernel(caller)(7) == 22
    assert [path.name.split("-")[0] for path in tmp_path.rglob("*.nbc")] == [
        f"test_jit.{caller.__qualname__}".replace("<locals>", "locals")
    ]
    assert not called.signatures
    assert called(7) == 21
    assert gc.isenabled()


def test_what_came_with_the_package_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not copied either; kernels for another processor are not loaded."""
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "built"))
    assert jit.kernel(thrice)(7) == 21
    monkeypatch.setattr(jit, "SHIPPED", tmp_path / "built")
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "empty"))
    _forget_now()
    monkeypatch.setattr(jit, "shipped_key", lambda key: key)
    loaded = jit.kernel(thrice)
    assert loaded(7) == 21
    assert loaded.stats.cache_hits
    assert not list((tmp_path / "empty").rglob("*.nb?"))
    monkeypatch.undo()
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(jit, "SHIPPED", tmp_path / "built")
    _forget_now()
    compiled = jit.kernel(thrice)
    assert compiled(7) == 21
    assert not compiled.stats.cache_hits


@pytest.mark.parametrize(
    ("missing", "level"), [("", "x86-64-v4"), ("avx512dq", "x86-64-v3"), ("fma", None)]
)
def test_shipped_code_is_that_of_the_hosts_level(
    monkeypatch: pytest.MonkeyPatch, missing: str, level: str | None
) -> None:
    features = dict.fromkeys(frozenset().union(*intrinsics.LEVELS.values()), True)
    above = {"fma": intrinsics.LEVELS["x86-64-v4"]}.get(missing, frozenset())
    there = {**features, **dict.fromkeys({missing, *above}, False)}
    monkeypatch.setattr(intrinsics.llvm, "get_host_cpu_features", lambda: there)
    intrinsics.x86_level.cache_clear()
    try:
        key = ("signature", ("x86_64-unknown-linux-gnu", "sapphirerapids", "+fma"), ("code",))
        expected = ("x86_64-unknown-linux-gnu", level, "")
        assert jit.shipped_key(key) == ("signature", expected, ("code",))
        monkeypatch.setattr(numba.config, "CPU_NAME", "generic")
        intrinsics.x86_level.cache_clear()
        assert intrinsics.x86_level() is None
    finally:
        intrinsics.x86_level.cache_clear()


def flipped(content: bytes) -> bytes:
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


def emptied(content: bytes) -> bytes:
    return b""


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        ("nbi", emptied),
        ("nbi", truncated),
        ("nbc", emptied),
        ("nbc", truncated),
        ("nbc", flipped),
    ],
)
def test_a_damaged_file_is_compiled_again_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))
    assert jit.kernel(thrice)(7) == 21
    (file,) = tmp_path.rglob(f"*.{suffix}")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with pytest.warns(RuntimeWarning, match="damaged files among the compiled kernels") as warned:
        assert jit.kernel(thrice)(7) == 21
    assert len(warned) == 1
    again = jit.kernel(thrice)
    assert again(7) == 21
    assert again.stats.cache_hits


def test_a_full_disk_costs_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CheckedFiles, "_open_for_write", full)
    with pytest.warns(RuntimeWarning, match="cannot be kept.*No space left") as warned:
        assert [jit.kernel(thrice)(7) for _ in range(2)] == [21, 21]
    assert len(warned) == 1


@pytest.mark.parametrize("line", [500, 5000])
def test_ctrl_c_comes_when_a_kernel_is_compiled(line: int) -> None:
    """Within numba it would leave locks taken, and unreadable tracebacks."""

    def nothing(table, bases, memory, scratch, first, last):
        return 0

    def double(x):
        return 2 * x

    entry, kernel = jit.Entry(nothing), jit.kernel(double)
    for compiled in (lambda: entry.address, lambda: kernel(line)):
        with interruptible(), interrupted_at(line, "numba.") as moment:
            with pytest.raises(KeyboardInterrupt):
                compiled()
            assert moment.came
    assert entry._compiled is not None
    assert kernel.signatures
    free = []
    thread = threading.Thread(target=lambda: free.append(_lock_is_free()))
    thread.start()
    thread.join()
    assert free == [True]
    assert entry.address
    assert kernel(line) == 2 * line


def _lock_is_free() -> bool:
    lock = global_compiler_lock._lock
    is_free: bool = lock.acquire(blocking=False)
    if is_free:
        lock.release()
    return is_free
