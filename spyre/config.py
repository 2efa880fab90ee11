"""The only reader of environment variables; ``docs/environment.md`` lists them.

A variable is read at each use, so tests may change the environment. This module imports no other
module of the package.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec


class Variable(msgspec.Struct, frozen=True):
    """An environment variable: its name, its default as text, and its meaning."""

    name: str
    default: str
    description: str

    def read(self) -> str:
        """Return the variable's value, or its default if it is unset or empty."""
        return os.environ.get(self.name, "") or self.default

    @property
    def is_set(self) -> bool:
        """Whether the variable is set, if only to the empty text."""
        return self.name in os.environ

    @property
    def is_on(self) -> bool:
        """Return False for 0, false, off and no, in any case, and True for all other values."""
        return self.read().strip().lower() not in ("0", "false", "off", "no")

    @property
    def directory(self) -> Path | None:
        """Return the value as a path, which may not exist, or None if it is empty."""
        text = self.read()
        return Path(text) if text else None


THREADS = Variable("SPYRE_NUM_THREADS", "", "host threads for kernels; default: usable CPUs")
CACHE_DIR = Variable("SPYRE_CACHE_DIR", "", "compiled kernels and plans; default: ~/.cache/spyre")
PLAN_CACHE = Variable(
    "SPYRE_PLAN_CACHE", "on", "`off` (or `0`): compiled plans are neither read nor written"
)
MEANWHILE = Variable(
    "SPYRE_MEANWHILE", "1", "1: small programs are interpreted while kernels compile; 0: they wait"
)
ALLOW_OUTSIDE = Variable(
    "SPYRE_ALLOW_OUTSIDE", "0", "1: bundles and cases may name, or link to, files outside them"
)
NUMERICS = Variable(
    "SPYRE_NUMERICS", "dl16", "default number mode, as for `--numerics`, such as dl16:alu=even"
)
VECTOR_WIDTH = Variable(
    "SPYRE_VECTOR_WIDTH", "", "float32 lanes of the matmul microkernel: 8 or 16; default: CPU's"
)
NUMBA_CPU_NAME = Variable(
    "NUMBA_CPU_NAME", "", "processor that kernels are compiled for, by LLVM's name; default: this"
)
NUMBA_CPU_FEATURES = Variable(
    "NUMBA_CPU_FEATURES", "", "its features, such as +avx2,-avx512f; default: this CPU's"
)
SCHEDULER = Variable(
    "SPYRE_SCHEDULER", "serialised", "jobs of several streams on a card: `serialised`, `concurrent`"
)
DOCS_URL = Variable(
    "SPYRE_DOCS_URL",
    "",
    "address of a published site of these pages, to which SARIF links the page of each code",
)
FRONTEND = Variable(
    "SPYRE_FRONTEND",
    "spyre",
    "backend of the PyTorch device: `spyre` (this package) or `torch-spyre`, which is run "
    "unmodified on the simulator",
)
GUARD_OFFSETS = Variable(
    "SPYRE_GUARD_OFFSETS", "0", "1: torch-spyre compiles again for views at other storage offsets"
)
LAUNCH_BLOCKING = Variable(
    "SPYRE_LAUNCH_BLOCKING", "0", "1: every launch and copy blocks until it is complete"
)
SANITIZE = Variable(
    "SPYRE_SANITIZE",
    "",
    "checks of the sanitizer on the PyTorch device's cards: 1 (all) or names, such as init,race; "
    "default: none",
)
PROGRESS = Variable(
    "SPYRE_PROGRESS", "1", "0: no progress messages on standard error for work of over a second"
)

FLEX_DEVICE = Variable(
    "FLEX_DEVICE", "VF", "mode of the flex runtime: PF (16 GiB regions), VF (12 GiB) or MOCK"
)
FLEX_MOCK_DEVICE_MEMORY_SIZE = Variable(
    "FLEX_MOCK_DEVICE_MEMORY_SIZE",
    str(8 * (12 << 30)),
    "bytes of device memory in MOCK mode, divided evenly among the eight regions",
)
AIU_WORLD_SIZE = Variable(
    "AIU_WORLD_SIZE", "", "number of simulated cards, 1 to 8; default: LOCAL_WORLD_SIZE, else 1"
)
LOCAL_WORLD_SIZE = Variable(
    "LOCAL_WORLD_SIZE", "", "ranks on this machine, as torchrun sets it: see AIU_WORLD_SIZE"
)
LOCAL_RANK = Variable(
    "LOCAL_RANK", "", "rank on this machine, as torchrun sets it: the initial card of each thread"
)
CARDS = Variable(
    "SPYRE_CARDS", "", "cards of the machine, 1 to 8, of which AIU_WORLD_SIZE makes fewer visible"
)
SPYRE_DEVICES = Variable(
    "SPYRE_DEVICES", "", "cards to expose, such as 2,0: device 0 is card 2; default: all"
)
CCL_TRANSPORT = Variable(
    "SPYRECCL_TRANSPORT",
    "auto",
    "how the cards of a process group reach each other: `shm` (shared memory), `gloo` (messages) "
    "or `auto`: shared memory where all ranks reach it, else gloo",
)
ALLREDUCE_ALGORITHM = Variable(
    "COLL_ALLREDUCE_ALGO",
    "RankOrder",
    "order in which collectives reduce: `RankOrder`, `Ring`, `Tree` or `Float32` (sums of 16-bit "
    "floats rounded once)",
)
ALLOW_TILED_LAUNCH = Variable(
    "SPYRE_ALLOW_TILED_LAUNCH",
    "1",
    "run kernels over tensors larger than their tiles: 1 or 0 (also true, false, on, off)",
)
FALLBACK = Variable(
    "SPYRE_FALLBACK",
    "warn",
    "PyTorch operations without a kernel on the card: `warn` once each and run on the CPU, "
    "`silent`, or `error`",
)

SENCORES = Variable(
    "SENCORES", "32", "cores that one operation of the PyTorch device may use, 1 to 32"
)
GLOBAL_STICK_OPTIMIZER = Variable(
    "GLOBAL_STICK_OPTIMIZER",
    "1",
    "compiled graphs: stick dims are chosen for a whole bundle; 0: operation by operation",
)
LX_FRACTION_KEPT = Variable(
    "DXP_LX_FRAC_AVAIL",
    "0.2",
    "share of every core's scratchpad that plans of compiled kernels leave free, 0 to 1",
)
DOWNCAST_WARN = Variable(
    "TORCH_SPYRE_DOWNCAST_WARN",
    "1",
    "0: no warning when the first int64 tensor is put on a card, where it is int32",
)
TORCH_DEBUG = Variable(
    "TORCH_SPYRE_DEBUG",
    "0",
    "1: log every operation, copy and compiled program of the PyTorch device to the logger "
    "`spyre.torch`",
)
WITHOUT_PATCHES = Variable(
    "SPYRE_WITHOUT_PATCHES",
    "",
    "changes to torch that are not made at import, such as printing,pinning: see PyTorch; "
    "default: none",
)
KEEP = Variable(
    "SPYRE_KEEP",
    "",
    "directory to which the PyTorch device writes every program it compiles, as a bundle for "
    "`spyre-run`; default: none is written",
)

K_FAST_EMISSION = Variable(
    "SPYRE_CORE_ID_K_FAST_EMISSION",
    "1",
    "1: cores that add up one tile of a compiled matmul have neighbouring numbers",
)
LX_PLANNING = Variable(
    "LX_PLANNING", "1", "1: intermediate results of compiled kernels may be placed in scratchpads"
)
COARSE_TILING = Variable(
    "COARSE_TILING", "1", "1: compiled functions run in tiles where hints request it"
)
AUTO_TILE = Variable("SPYRE_AUTO_TILE", "0", "1: tiles are chosen where no hints request any")
UNROLL_LOOPS = Variable(
    "UNROLL_LOOPS", "0", "1: loops over tiles are written out in compiled bundles"
)
SYMBOLIC_SIZES = Variable(
    "SPYRE_SYMBOLIC_SIZES",
    "asked",
    "compiled functions: 1: once for all sizes; 0: once per size; asked: as dynamic=True and "
    "mark_dynamic request",
)
BUNDLE_SYMBOLIC_ARGS = Variable(
    "BUNDLE_SYMBOLIC_ARGS", "1", "1: addresses in compiled bundles are launch arguments"
)
DUMP_PASSES = Variable(
    "SPYRE_DUMP_PASSES",
    "",
    "directory for compiled graphs as text: the FX graph after each of its passes, the operations "
    "before and after each of theirs; default: none",
)

VARIABLES = tuple(value for value in list(globals().values()) if isinstance(value, Variable))
"""All variables, in the order of this file."""

_ONE_PACKER = "buffers are packed in the order of their first use"
_ALL_OPERATIONS = "results of all operations may be placed in scratchpads"
REMOVED = {
    "WORK_DIVISION": "matmuls are divided by the cost model that was called `june`",
    "LX_SOLVER": _ONE_PACKER,
    "LX_RULE": _ALL_OPERATIONS,
    "ALLOW_ALL_OPS_IN_LX_PLANNING": _ALL_OPERATIONS,
}
"""Variables of the compiler that earlier versions documented: the behaviour that replaces each."""


def removed_variables() -> list[str]:
    """Return a message for each variable of `REMOVED` that is set; it has no effect."""
    names = [name for name in REMOVED if os.environ.get(name)]
    return [f"{name} was removed and is ignored: {REMOVED[name]}; unset it" for name in names]


def launch_blocking() -> bool:
    """Return True if submissions block: SPYRE_LAUNCH_BLOCKING."""
    return LAUNCH_BLOCKING.read() != "0"


def sanitizer_checks() -> bool | str:
    """Return SPYRE_SANITIZE: True for all checks, their names, or False for none."""
    text = SANITIZE.read().strip()
    return text if text.lower() not in ("", "0", "off", "1", "all") else text in ("1", "all")


def allows_outside() -> bool:
    """Return whether bundles may use files outside of their directory: SPYRE_ALLOW_OUTSIDE."""
    return ALLOW_OUTSIDE.read().strip().lower() in ("1", "true", "on", "yes")


def thread_count() -> int:
    """Return the host threads for kernels: SPYRE_NUM_THREADS, else the usable CPUs."""
    with suppress(ValueError):
        if (count := int(THREADS.read())) > 0:
            return count
    return len(os.sched_getaffinity(0))


def cache_directories() -> Iterator[Path]:
    """Yield the directories for compiled kernels and plans: the one that is asked for, then the one
    of this user below the temporary directory. They may not exist, or not be writable.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if text := CACHE_DIR.read():
        yield Path(text)
    else:
        with suppress(RuntimeError):  # no home directory
            yield (Path(base) if base else Path.home() / ".cache") / "spyre"
    import tempfile

    temporary = "/tmp"
    with suppress(FileNotFoundError):  # none can be written
        temporary = tempfile.gettempdir()
    yield Path(temporary) / f"spyre-cache-{os.geteuid()}"
