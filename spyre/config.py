"""The only reader of environment variables; ``docs/environment.md`` lists them.

A value is read when it is asked for, so a test may change the environment. Importing this module
costs nothing and imports nothing of ours.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: its name, default (as text) and what it does."""

    name: str
    default: str
    description: str

    def read(self) -> str:
        """The variable's value, or its default when unset or empty."""
        return os.environ.get(self.name, "") or self.default


THREADS = Variable("SPYRE_NUM_THREADS", "", "host threads for kernels; default: usable CPUs")
CACHE_DIR = Variable("SPYRE_CACHE_DIR", "", "compiled kernels and plans; default: ~/.cache/spyre")
PLAN_CACHE = Variable(
    "SPYRE_PLAN_CACHE", "on", "`off` (or `0`): compiled plans are neither read nor written"
)
MEANWHILE = Variable(
    "SPYRE_MEANWHILE",
    "1",
    "0: programs wait until their kernels are compiled; 1: small ones are interpreted meanwhile",
)
NUMERICS = Variable(
    "SPYRE_NUMERICS",
    "dl16",
    "default number mode, in the form `--numerics` takes, such as dl16:alu=even",
)
VECTOR_WIDTH = Variable(
    "SPYRE_VECTOR_WIDTH", "", "float32 lanes of the matmul microkernel: 8 or 16; default: CPU's"
)
SCHEDULER = Variable(
    "SPYRE_SCHEDULER",
    "serialised",
    "how jobs of different streams share a card: `serialised` or `concurrent`",
)
FRONTEND = Variable(
    "SPYRE_FRONTEND",
    "spyre",
    "who the PyTorch device belongs to: `spyre`, this package's own, or `torch-spyre`, which is "
    "run unmodified on the simulator",
)
LAUNCH_BLOCKING = Variable(
    "SPYRE_LAUNCH_BLOCKING", "0", "1: every launch and copy waits until it is done"
)
SANITIZE = Variable(
    "SPYRE_SANITIZE",
    "",
    "checks of the sanitizer on the PyTorch device's cards: 1 (all) or names, such as init,race; "
    "default: none",
)
PROGRESS = Variable(
    "SPYRE_PROGRESS", "1", "0: what takes more than a second does not say so on standard error"
)

FLEX_DEVICE = Variable(
    "FLEX_DEVICE", "VF", "mode of the flex runtime: PF (16 GiB regions), VF (12 GiB) or MOCK"
)
FLEX_MOCK_DEVICE_MEMORY_SIZE = Variable(
    "FLEX_MOCK_DEVICE_MEMORY_SIZE",
    str(8 * (12 << 30)),
    "bytes of device memory in MOCK mode, shared out evenly over the eight regions",
)
AIU_WORLD_SIZE = Variable(
    "AIU_WORLD_SIZE", "", "number of simulated cards, 1 to 8; default: LOCAL_WORLD_SIZE, else 1"
)
LOCAL_WORLD_SIZE = Variable(
    "LOCAL_WORLD_SIZE", "", "ranks on this machine, as torchrun sets it: see AIU_WORLD_SIZE"
)
LOCAL_RANK = Variable(
    "LOCAL_RANK", "", "number among them, as torchrun sets it: the card every thread begins with"
)
SPYRE_DEVICES = Variable(
    "SPYRE_DEVICES", "", "cards to expose, such as 2,0: device 0 is card 2; default: all"
)
CCL_TRANSPORT = Variable(
    "SPYRECCL_TRANSPORT",
    "auto",
    "how the cards of a process group reach each other: `shm` (shared memory), `gloo` (messages), "
    "`local` (ranks that are threads of one process) or `auto`: shared memory where all ranks "
    "reach it, else gloo",
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
    "compiled graphs: where sticks run is chosen for a whole bundle; 0: operation by operation",
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
    "changes of torch that importing it leaves out, such as printing,pinning: see PyTorch; "
    "default: none",
)
KEEP = Variable(
    "SPYRE_KEEP",
    "",
    "directory to which the PyTorch device writes every program it compiles, as a bundle for "
    "`spyre-run`; default: none is written",
)

WORK_DIVISION = Variable(
    "WORK_DIVISION", "june", "planner of matmul divisions in compiled functions: `june` or `august`"
)
K_FAST_EMISSION = Variable(
    "SPYRE_CORE_ID_K_FAST_EMISSION",
    "1",
    "1: cores that add up one tile of a compiled matmul have neighbouring numbers",
)
LX_PLANNING = Variable(
    "LX_PLANNING", "1", "1: intermediate results of compiled kernels may lie in scratchpads"
)
LX_SOLVER = Variable(
    "LX_SOLVER",
    "greedy",
    "who places them there: `greedy`, `first_fit`, `best_fit` or `optimal`",
)
LX_RULE = Variable(
    "LX_RULE", "all", "results of which operations may lie there: `june`, `august` or `all`"
)
ALLOW_ALL_OPS_IN_LX_PLANNING = Variable(
    "ALLOW_ALL_OPS_IN_LX_PLANNING", "0", "1: those of all operations, whatever LX_RULE says"
)
COARSE_TILING = Variable(
    "COARSE_TILING", "1", "1: compiled functions run in tiles where hints ask for it"
)
AUTO_TILE = Variable("SPYRE_AUTO_TILE", "0", "1: tiles are chosen where no hints ask for any")
UNROLL_LOOPS = Variable(
    "UNROLL_LOOPS", "0", "1: loops over tiles are written out in compiled bundles"
)
SYMBOLIC_SIZES = Variable(
    "SPYRE_SYMBOLIC_SIZES",
    "asked",
    "compiled functions: 1: once for all sizes; 0: once per size; asked: as dynamic=True and "
    "mark_dynamic ask",
)
BUNDLE_SYMBOLIC_ARGS = Variable(
    "BUNDLE_SYMBOLIC_ARGS", "1", "1: addresses in compiled bundles are launch arguments"
)
DUMP_PASSES = Variable(
    "SPYRE_DUMP_PASSES",
    "",
    "directory for compiled graphs as text: the FX graph after every pass, operations before and "
    "after each of theirs; default: none",
)

VARIABLES = tuple(value for value in list(globals().values()) if isinstance(value, Variable))
"""Every variable, in the order of this file."""


def launch_blocking() -> bool:
    """True if submissions are to wait: SPYRE_LAUNCH_BLOCKING."""
    return LAUNCH_BLOCKING.read() != "0"


def sanitizer_checks() -> bool | str:
    """SPYRE_SANITIZE: True for all checks, names, or False for none."""
    text = SANITIZE.read().strip()
    return text if text.lower() not in ("", "0", "off", "1", "all") else text in ("1", "all")


def thread_count() -> int:
    """Host threads kernels may use: SPYRE_NUM_THREADS, else the CPUs this process may run on."""
    text = THREADS.read()
    if text.isdigit() and int(text) > 0:
        return int(text)
    return len(os.sched_getaffinity(0))


def shows_progress() -> bool:
    """False when SPYRE_PROGRESS says so."""
    return PROGRESS.read().strip().lower() not in ("0", "false", "off", "no")


def interprets_meanwhile() -> bool:
    """False when SPYRE_MEANWHILE says so."""
    return MEANWHILE.read().strip().lower() not in ("0", "false", "off", "no")


def keeps_plans() -> bool:
    """False when SPYRE_PLAN_CACHE says so."""
    return PLAN_CACHE.read().lower() not in ("off", "0", "no", "false")


def cache_directory() -> Path:
    """Directory for compiled kernels and plans (not created here)."""
    text = CACHE_DIR.read()
    if text:
        return Path(text)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "spyre"


def tiled_launch_allowed() -> bool:
    """SPYRE_ALLOW_TILED_LAUNCH: whether launches over larger tensors are run tile by tile."""
    return ALLOW_TILED_LAUNCH.read().strip().lower() not in ("0", "false", "off", "no")


def warns_of_downcasts() -> bool:
    """TORCH_SPYRE_DOWNCAST_WARN: whether the first int64 tensor on a card gets a warning."""
    return DOWNCAST_WARN.read().strip().lower() not in ("0", "false", "off", "no")


def keep_directory() -> Path | None:
    """SPYRE_KEEP: where compiled programs are written (not created here); None: nowhere."""
    text = KEEP.read()
    return Path(text) if text else None


def logs_torch_operations() -> bool:
    """TORCH_SPYRE_DEBUG: whether operations and copies of the PyTorch device are logged."""
    return TORCH_DEBUG.read().strip().lower() not in ("0", "false", "off", "no")


def dump_passes_directory() -> Path | None:
    """SPYRE_DUMP_PASSES: where operations around passes are written; None: nowhere."""
    text = DUMP_PASSES.read()
    return Path(text) if text else None
