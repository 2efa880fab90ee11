"""All uses of private interfaces of torch 2.13's distributed package, each symbol once, and the
patches of torch for DDP and random DTensors, installed when the first group is created.

``tests/torch_backend/distributed/test_compat.py`` has a canary per symbol.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode

from spyre.errors import UnsupportedError
from spyre.runtime.comms import CollectiveError
from spyre.torch_backend.compat import CPU_KEYS, skip_in_dynamo
from spyre.torch_backend.device import cpu_generator

if TYPE_CHECKING:
    from spyre.torch_backend.distributed.threads import Completion

c10d: Any = torch._C._distributed_c10d
SLICE_SECONDS = 0.05
_CALLBACK_ERROR = "Got the following error when running the callback: "
_libraries: list[Any] = []


def reduce_op_name(reduce_op: Any) -> str:
    """Return ``sum``, ``avg`` …; ``reduce_op``: a ReduceOp, or the script object of one."""
    kind = reduce_op.op() if callable(reduce_op.op) else reduce_op.op
    return str(c10d.ReduceOp.RedOpType(kind).name.lower())


def backend_of_cards(process_group: Any) -> tuple[Any, str]:
    """Return the backend object for cards, None without one, and the name of a group;
    ``process_group`` may be a script object.
    """
    known = isinstance(process_group, c10d.ProcessGroup)
    group = process_group if known else c10d.ProcessGroup.unbox(process_group)
    cards = torch.device("spyre")
    if cards not in group._device_types:
        return None, str(group.group_name)
    backend = group._get_backend(cards)
    # with TORCH_DISTRIBUTED_DEBUG=DETAIL it is inside of another one
    return getattr(backend, "wrapped_pg", backend), str(group.group_name)


def group_named(name: str) -> Any:
    """Return the process group of a name, or the world, if it has no such one.

    ValueError without any group.
    """
    try:
        return c10d._resolve_process_group(name)
    except (LookupError, RuntimeError):
        return distributed_c10d._get_default_group()


def new_gloo(prefix: str, store: Any, options: Any) -> Any:
    """Return a gloo backend of the ranks of ``options``, a ``_DistributedBackendOptions``."""
    store, size = dist.PrefixStore(prefix, store), options.group_size
    try:
        return c10d.ProcessGroupGloo(store, options.group_rank, size, timeout=options.timeout)
    except RuntimeError as error:
        raise CollectiveError("SPY954", "no connection to a rank", found=str(error)) from error


def milliseconds(seconds: float) -> timedelta:
    """Return a timeout of at least ``seconds``, because a gloo timeout before the deadline would
    count as a broken connection, and of at least 1 ms, because 0 means gloo's default.
    """
    return timedelta(milliseconds=max(1, math.ceil(seconds * 1e3)))


def work_of_future(future: Any, completion: Completion) -> Any:
    """Return a C++ ``Work`` of a `torch.futures.Future`, whose `wait` raises the future's error."""
    work = c10d._create_work_from_future(future)
    _works[work] = completion
    if (coalesced := getattr(_latest, "coalesced", None)) is not None:
        coalesced.append(work)
    # C++ returns the work to Python soon after; until then nothing else may keep this object.
    _latest.work = work
    return work


def ended_work_of_future(future: Any) -> Any:
    """Return a C++ ``Work`` of a future that has completed without error."""
    return c10d._create_work_from_future(future)


_works: weakref.WeakKeyDictionary[Any, Completion] = weakref.WeakKeyDictionary()
_futures: weakref.WeakKeyDictionary[Any, Completion] = weakref.WeakKeyDictionary()
"""Completions of the works of cards, of their futures and of callbacks' futures."""
_latest = threading.local()
"""``work``: the last one of the thread; ``coalesced``: those since `_start_coalescing`, or None."""


def implement_c10d(
    kernels: Mapping[str, Callable[..., Any]], check: Callable[[torch.Tensor], None]
) -> None:
    """Register kernels of ``torch.ops.c10d`` for cards; `wait_tensor` calls ``check`` with the
    tensor it has waited for, which may raise.
    """
    library = torch.library.Library("c10d", "IMPL")
    functional = torch.library.Library("_c10d_functional", "IMPL")
    wait = torch.ops._c10d_functional.wait_tensor.default

    def wait_tensor(tensor: torch.Tensor) -> torch.Tensor:
        _latest.work = None
        result: torch.Tensor = wait.redispatch(CPU_KEYS, tensor)
        check(result)
        return result

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kernel in kernels.items():
            library.impl(name, skip_in_dynamo(kernel), "PrivateUse1", allow_override=True)
        functional.impl(
            "wait_tensor", skip_in_dynamo(wait_tensor), "PrivateUse1", allow_override=True
        )
    _libraries.extend((library, functional))


# --- works and futures ----------------------------------------------------------------------------
# The functions that `spyre.torch_backend.registration.patches` places around those of torch; each
# gets the original and its arguments.


def wait(original: Any, work: Any, timeout: timedelta | None = None) -> Any:
    """``Work.wait`` that raises its future's error, accepts a timeout and is interruptible.

    The C++ wait of a work created from a future does none of these.
    """
    completion = _works.get(work)
    if completion is None:
        return original(work) if timeout is None else original(work, timeout)
    _latest.work = None
    limit = None if timeout is None else timeout.total_seconds()
    _wait_for(completion.done, limit or None)
    _value_of(work.get_future())
    return original(work)


def get_future(original: Any, work: Any) -> Any:
    """A work's future, whose callbacks run on the threads of its group."""
    future, completion = original(work), _works.get(work)
    if completion is not None:
        _futures[future] = completion
    return future


def add_callback(original: Any, future: Any, callback: Callable[[Any], Any]) -> Any:
    """``Future.then`` and ``add_done_callback`` for futures of cards and of their callbacks."""
    completion = _futures.get(future)
    if completion is None:
        return original(future, callback)
    start: Any = torch.futures.Future()
    child = original(start, completion.ordered(callback, future))
    after = completion.then(lambda: start.set_result(None))
    if child is not None:
        _futures[child] = after
    return child


def start_coalescing(original: Any, group: Any, device: torch.device) -> None:
    """Let a group of cards take part in `_coalescing_manager`, which C++ does per backend."""
    if device.type != "spyre":
        original(group, device)
    else:
        _latest.coalesced = []


def end_coalescing(original: Any, group: Any, device: torch.device) -> Any:
    """Return the work of all operations since `start_coalescing`."""
    from spyre.torch_backend.distributed.group import group_of

    if device.type != "spyre":
        return original(group, device)
    works, _latest.coalesced = _latest.coalesced, None
    return c10d.Work.unbox(group_of(group).coalesced(works))


def _wait_for(done: threading.Event, limit: float | None) -> None:
    # in slices, between which Python handles signals
    last = math.inf if limit is None else time.monotonic() + limit
    while not done.wait(min(SLICE_SECONDS, max(0.0, last - time.monotonic()))):
        if time.monotonic() >= last:
            raise dist.DistBackendError(f"wait: not completed within {limit:g} s")


def _value_of(future: Any) -> None:
    try:
        future.value()
    except RuntimeError as error:
        # the text of a callback's error is "Got the following error …: TYPE: TEXT" and C++ frames
        text = str(error).partition("\n\nAt:")[0]
        _, marked, message = text.partition(_CALLBACK_ERROR)
        raise dist.DistBackendError(message.partition(": ")[2] if marked else text) from None


def destroy_process_group(original: Any, group: Any = None) -> None:
    """Close a group before it is destroyed."""
    from spyre.torch_backend.distributed.group import close_group

    chosen = dist.GroupMember.WORLD if group is None else group
    everything = chosen is dist.GroupMember.WORLD
    for member in list(distributed_c10d._world.pg_map) if everything else [chosen]:
        if isinstance(member, c10d.ProcessGroup):
            close_group(member)
    original(group)


def new_group(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the cards' backend the default one of a group with cards, for DDP and for the end of the
    group.

    torch's default is gloo if no backend is named, even if there is none, and that of the first
    plugin, "fake", if devices are named.
    """
    group, store = original(*args, **kwargs)
    if isinstance(group, c10d.ProcessGroup) and torch.device("spyre") in group._device_types:
        group._set_default_backend(c10d.ProcessGroup.BackendType.CUSTOM)
    return group, store


@functools.cache
def keep_imports_from_dynamo() -> None:
    """Prevent a deadlock of imports in functions under torch.compile, if ranks are threads.

    Dynamo processes every Python function, including those of import finders, which run under the
    import lock; there it waits for its own lock, whose owner may be waiting for the import lock.
    """
    for finder in sys.meta_path:
        if hasattr(find_spec := finder.find_spec, "__code__"):
            skip_in_dynamo(find_spec)


# --- DDP ------------------------------------------------------------------------------------------
# DDP reduces a map of the parameters that each rank used, staged in pinned memory, which a device
# in Python cannot provide; here the map stays on the host and gloo reduces it.


class used_map_on_host(TorchDispatchMode):  # type: ignore[misc]
    """Make the int32 tensor that a DDP Reducer creates on the card a CPU tensor."""

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = dict(kwargs or {})
        is_map = op is torch.ops.aten.empty.memory_format and named.get("dtype") is torch.int32
        if is_map and torch.device(named.get("device") or "cpu").type == "spyre":
            named["device"] = torch.device("cpu")
        return op(*args, **named)


def _let_gloo_reduce_map(group: Any) -> None:
    """Use the group's gloo backend for collectives of CPU tensors."""
    from spyre.torch_backend.distributed.group import group_of

    if torch.device("cpu") not in group._device_types:
        gloo = group_of(group).gloo
        group._register_backend(torch.device("cpu"), c10d.ProcessGroup.BackendType.GLOO, gloo)


def make_reducer(original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
    """Let the reducer of a module on a card keep the map of used parameters on the host."""
    if module.device_type != "spyre":
        return original(module, *args, **kwargs)
    if module.find_unused_parameters:
        return set_static_graph(original, module, *args, **kwargs)
    with used_map_on_host():
        return original(module, *args, **kwargs)


def set_static_graph(original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
    """Like `make_reducer` with a map that is reduced: the map is created again."""
    if module.device_type != "spyre":
        return original(module, *args, **kwargs)
    _let_gloo_reduce_map(module.process_group)
    with used_map_on_host():
        return original(module, *args, **kwargs)


# --- random DTensors ------------------------------------------------------------------------------
# DTensor's tracker counts offsets of a Philox generator, which the cards' generator does not have;
# here every operation draws one number from the generator that all ranks share, and each shard
# derives a seed from it.

SEEDS = 1 << 32
"""Number of seeds of a CPU generator."""


def _synchronise_generators() -> None:
    """Set the generator of every rank's card to the state of rank 0."""
    generator = cpu_generator()
    state = generator.get_state().to("spyre")
    dist.broadcast(state, 0)
    generator.set_state(state.cpu())


@contextmanager
def _shard_random(spec: Any, generator: torch.Generator | None) -> Iterator[None]:
    """Seed the card for this rank's shard within the block; replicas draw equal numbers.

    ``spec``: DTensorSpec of the result. ``generator``: provides the common seed, by default the
    card's; it advances by one number.
    """
    if torch.compiler.is_compiling() or torch._guards.TracingContext.try_get():
        raise UnsupportedError(
            "SPY979",
            "random operations of DTensors under torch.compile",
            hint="draw before, or keep the operation out of the compiled function",
        )
    card = cpu_generator()
    source = card if generator is None else generator
    (common,) = torch.randint(SEEDS, (1,), generator=source, device="cpu").tolist()
    before = card.get_state()
    card.manual_seed((common + _shard_index(spec)) % SEEDS)
    try:
        yield
    finally:
        card.set_state(before)


def initialise_tracker(
    original: Any, tracker: Any, device_mesh: Any, run_state_sync: bool = True
) -> None:
    """Let the trackers of a mesh of cards share the state of a generator."""
    is_card = device_mesh.device_type == "spyre"
    original(tracker, device_mesh, run_state_sync and not is_card)
    if is_card and run_state_sync:
        _synchronise_generators()


def distribute_region(
    original: Any, tracker: Any, spec: Any, generator: torch.Generator | None = None
) -> Any:
    """Seed each shard on a card from the shared state."""
    if tracker._device.type != "spyre":
        return original(tracker, spec, generator)
    return _shard_random(spec, generator) if tracker.distribute_region_enabled else nullcontext()


def _shard_index(spec: Any) -> int:
    """Return the number of this rank's shard of a DTensor with ``spec``; equal for replicas."""
    from torch.distributed.tensor import _random

    coordinate = [spec.mesh._sym_get_coordinate(dim) for dim in range(spec.mesh.ndim)]
    shards, counts = _random._calc_shard_info(coordinate, spec)
    return int(_random._calc_shard_linear_idx(shards, counts))
