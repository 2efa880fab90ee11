"""All changes to torch itself, made where torch 2.13 has no hook for a device in Python.

No change affects other devices or loads the simulator before a tensor is on a card.
SPYRE_WITHOUT_PATCHES disables changes by name. `PATCHES` lists them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import torch

from spyre import config
from spyre.errors import LaunchError
from spyre.interrupts import interrupts
from spyre.torch_backend import compat, device as cards, tensors
from spyre.torch_backend.device import (
    _exchange_device,
    _maybe_exchange_device,
    current_device,
    current_if_used,
    is_initialized,
    set_device,
    synchronize,
)


def _with_current_card(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Add the current card's index to "spyre", which C++ would take for card 0."""
    index = current_if_used()
    if index is None:  # look up the current card only if "spyre" is named
        is_named = any(_lacks_index(value) for value in (*args, kwargs.get("device")))
        index = current_device() if is_named else 0
    if index:
        named = {k: _named(v, index) if k == "device" else v for k, v in kwargs.items()}
        return original(*(_named(value, index) for value in args), **named)
    return original(*args, **kwargs)


def _named(value: Any, index: int) -> Any:
    return torch.device("spyre", index) if _lacks_index(value) else value


def _lacks_index(value: Any) -> bool:
    return _is_spyre(value) and torch.device(value).index is None


FOR_OTHER_PACKAGES = (
    *("accelerator", "stream", "event", "generator", "profiled_memory", "to", "factories"),
)


def install_named(names: Collection[str] = FOR_OTHER_PACKAGES) -> None:
    """Install patches by name, for a package that registers PrivateUse1 itself."""
    for patch in PATCHES:
        if patch.name in names:
            patch.put(patch.targets)


def _is_spyre(device: Any) -> bool:
    """Return True for "spyre", "spyre:1" and torch devices of this type."""
    if isinstance(device, str):
        return device.partition(":")[0] == "spyre"
    return isinstance(device, torch.device) and device.type == "spyre"


# --- tensors -------------------------------------------------------------------------------------


def _print_on_host(original: Callable[..., str], tensor: torch.Tensor, *args: Any) -> str:
    """Print a copy on the CPU: printing computes in float64, for which the card has no format."""
    return original(tensor.cpu() if tensor.device.type == "spyre" else tensor, *args)


def _to(original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if "device_layout" not in kwargs:
        return _with_current_card(original, tensor, *args, **kwargs)
    return tensors.to_layout(tensor, *args, **kwargs)


def _empty(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if "device_layout" not in kwargs:
        return original(*args, **kwargs)
    return tensors.empty_in_layout(original, *args, **kwargs)


def _device_tensor_layout(tensor: torch.Tensor) -> Any:
    """Return the `SpyreTensorLayout` of the storage behind a tensor on a spyre device."""
    return tensors.device_tensor_layout(tensor)


def _to_dlpack(
    original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Refuse to export the memory of a card, whose layout in sticks other libraries do not know."""
    wanted = kwargs.get("dl_device")
    if tensor.device.type == "spyre" and (wanted is None or int(wanted[0]) != 1):
        raise BufferError(
            "spyre tensors cannot be exported by DLPack: their memory is laid out in sticks. "
            "Use tensor.cpu() first"
        )
    return original(tensor, *args, **kwargs)


def _pin_memory(original: Callable[..., Any], tensor: torch.Tensor, device: Any = None) -> Any:
    """Return a copy marked as pinned; a simulated card can copy from any host memory."""
    if tensor.device.type != "cpu" or not (device is None or _is_spyre(device)):
        return original(tensor, device)
    if tensor.is_pinned():
        return tensor
    pinned = tensor.clone(memory_format=torch.preserve_format)
    pinned.untyped_storage()._spyre_pinned = True
    return pinned


def _is_pinned(original: Callable[..., Any], tensor: torch.Tensor, device: Any = None) -> Any:
    if tensor.device.type != "cpu" or not (device is None or _is_spyre(device)):
        return original(tensor, device)
    return getattr(tensor.untyped_storage(), "_spyre_pinned", False)


def _backward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run backward in the calling thread: the engine's threads have no current card or stream."""
    if not is_initialized():
        return original(*args, **kwargs)
    with interrupts:
        cards.follow_all_streams()
        with torch.autograd.set_multithreading_enabled(False), interrupts.allowed():
            return original(*args, **kwargs)


def _profile(original: Callable[..., Any], profile: Any, *args: Any, **kwargs: Any) -> None:
    """Use times of Kineto; the alternative calls C++ stubs of the device and gives wrong times."""
    device = kwargs.get("use_device")
    if device is not None and _is_spyre(device):
        kwargs["use_kineto"] = True
    original(profile, *args, **kwargs)


def _unscale(original: Callable[..., Any], scaler: Any, optimizer: Any) -> Any:
    # A disabled scaler has no scale, the scale of an unused one is None; torch handles both.
    scale = getattr(scaler, "_scale", None)
    if scale is None or scale.device.type != "spyre":
        return original(scaler, optimizer)
    # its double() is float32, as on other devices without float64
    scaler._scale = SimpleNamespace(double=lambda: scale, device=scale.device)
    try:
        return original(scaler, optimizer)
    finally:
        scaler._scale = scale


def _check_trace(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    with cards.doubles_on_host:
        original(*args, **kwargs)


def _data_parallel(original: Callable[..., None], wrapper: Any, *args: Any, **kwargs: Any) -> None:
    module = args[0] if args else kwargs.get("module")
    if module is None or compat.accelerator_of_data_parallel() != "spyre":
        original(wrapper, *args, **kwargs)
        return
    # As torch does without an accelerator, and with one that it cannot scatter to.
    torch.nn.Module.__init__(wrapper)
    wrapper.module, wrapper.device_ids = module, []


# --- storages ------------------------------------------------------------------------------------


def _new_storage(original: Callable[..., Any], cls: type, *args: Any, **kwargs: Any) -> Any:
    """Create a storage here, because torch would call a C++ allocator of the device."""
    device = kwargs.get("device")
    if device is None or not _is_spyre(device):
        return original(cls, *args, **kwargs)
    size_bytes = args[0] if args else kwargs.get("size", 0)
    if not isinstance(size_bytes, int):
        raise TypeError("a spyre storage is made from a number of bytes, not from data")
    return tensors.new_storage(size_bytes, torch.device(device))


def _storage_method(name: str) -> Callable[..., Any]:
    def method(original: Callable[..., Any], storage: Any, *args: Any, **kwargs: Any) -> Any:
        if storage.device.type != "spyre":
            return original(storage, *args, **kwargs)
        return tensors.METHODS[name](storage, *args, **kwargs)

    return method


# --- streams, events, generators -----------------------------------------------------------------


def _stream(device: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Create a stream on a card, which is the default accelerator; None for other devices."""
    if kwargs.get("device_type", compat.PRIVATE_USE_1) != compat.PRIVATE_USE_1:
        return None
    if device is not None and not isinstance(device, int) and not _is_spyre(device):
        return None
    kwargs.pop("device_type", None)
    return cards.Stream(device, *args, **kwargs)


def _event(device: Any = None, **kwargs: Any) -> Any:
    if device is not None and not isinstance(device, int) and not _is_spyre(device):
        return None
    return cards.Event(device, **kwargs)


def _generator(*args: Any, **kwargs: Any) -> Any:
    device = args[0] if args else kwargs.get("device")
    if len(args) + len(kwargs) != 1 or not _is_spyre(device):
        return None
    return cards.SpyreGenerator(device)


def _lazily(module: str, name: str) -> Callable[..., Any]:
    """Return a function of ``spyre.torch_backend.MODULE``, which is imported at the first call."""

    full_name = f"spyre.torch_backend.{module}"

    def call(*args: Any, **kwargs: Any) -> Any:
        home = sys.modules.get(full_name) or importlib.import_module(full_name)
        return getattr(home, name)(*args, **kwargs)

    return call


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_accelerator_isAllocatorInitialized": is_initialized,
    "_accelerator_getDeviceIndex": current_device,
    "_accelerator_setDeviceIndex": set_device,
    "_accelerator_exchangeDevice": _exchange_device,
    "_accelerator_maybeExchangeDevice": _maybe_exchange_device,
    "_accelerator_getStream": _lazily("device", "current_stream"),
    "_accelerator_setStream": _lazily("device", "set_stream"),
    "_accelerator_synchronizeDevice": synchronize,
    "_accelerator_getDeviceStats": _lazily("device", "memory_stats"),
    "_accelerator_resetPeakStats": _lazily("device", "reset_peak_memory_stats"),
    "_accelerator_resetAccumulatedStats": _lazily("device", "reset_accumulated_memory_stats"),
    "_accelerator_getMemoryInfo": _lazily("device", "get_memory_info"),
    "_accelerator_emptyCache": _lazily("device", "empty_cache"),
    "_accelerator_emptyHostCache": lambda: None,  # host memory for copies is not cached
    "_accelerator_getDeviceCapability": _lazily("device", "get_device_capability"),
}
"""Replacements by name of the function of ``torch._C``."""

# --- the compiler --------------------------------------------------------------------------------
# A finder on ``sys.meta_path`` intercepts the imports of Inductor's entry module and of its config,
# which defines the options of ``torch.compile``; after both it is removed.

PACKAGE = "spyre.torch_backend.inductor"
INSTALLERS = {
    "torch._inductor.config": f"{PACKAGE}.config",
    "torch._inductor.compile_fx": f"{PACKAGE}.hooks.registration",
}
"""Modules whose ``install`` runs after the import of a module of torch, by its name."""


def install_on_use() -> None:
    """Install the backend in Inductor's modules: now in loaded ones, in others at their import."""
    if any(isinstance(finder, _InductorFinder) for finder in sys.meta_path):
        return
    awaited = {name for name in INSTALLERS if name not in sys.modules}
    if awaited:
        sys.meta_path.insert(0, _InductorFinder(awaited))
    for name in INSTALLERS:
        if name not in awaited:
            _install(name)


def _install(name: str) -> None:
    importlib.import_module(INSTALLERS[name]).install()


class _InductorFinder(importlib.abc.MetaPathFinder):
    """Finds awaited modules through the other finders; their installers run after their import."""

    def __init__(self, awaited: set[str]) -> None:
        self.awaited = awaited

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's spec if it is awaited."""
        if fullname not in self.awaited:
            return None
        self.awaited.remove(fullname)
        if not self.awaited:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            vars(spec.loader)["exec_module"] = _then_install(spec.loader.exec_module)
        return spec


def _then_install(execute: Callable[[ModuleType], object]) -> Callable[[ModuleType], None]:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        _install(module.__name__)  # which may import the module

    return exec_module


# --- the list ------------------------------------------------------------------------------------

STORAGE_METHODS = (
    *("clone", "resize_", "nbytes", "fill_", "tolist", "is_shared", "share_memory_"),
    *("__getitem__", "__setitem__", "__iter__", "__repr__"),
    *("_share_fd_cpu_", "_share_filename_cpu_"),
)
"""Methods of ``torch.UntypedStorage`` that `storages` replaces for storages on a card."""


def _add_device_tensor_layout(targets: Mapping[str, Any]) -> None:
    torch.Tensor.device_tensor_layout = _device_tensor_layout
    compat.ignore_in_overrides(_device_tensor_layout)


def _wrap_if_available(targets: Mapping[str, Any]) -> None:
    import torch.distributed

    if torch.distributed.is_available():
        compat.wrap(targets)


_of_groups = partial(_lazily, "distributed.compat")


class Patch(msgspec.Struct, frozen=True):
    """A change to torch. ``targets``: replaced names, and the functions that ``put`` places there
    once per process.
    ``purpose``: the feature that requires it.

    ``with_groups``: installed with the first process group of ``spyreccl``, not with torch.
    """

    name: str
    targets: Mapping[str, Any]
    purpose: str
    put: Callable[[Mapping[str, Any]], None] = compat.wrap
    with_groups: bool = False


_WORK = "torch._C._distributed_c10d.Work"
_PROCESS_GROUP = "torch._C._distributed_c10d.ProcessGroup"
_DDP = "torch.nn.parallel.DistributedDataParallel"
_TRACKER = "torch.distributed.tensor._random.OffsetBasedRNGTracker"
PATCHES = (
    Patch(
        "printing",
        {"torch._tensor_str._tensor_str": _print_on_host},
        "`print(x)`: torch computes the text in float64",
    ),
    Patch(
        "storages",
        {
            "torch.UntypedStorage.__new__": _new_storage,
            **{f"torch.UntypedStorage.{name}": _storage_method(name) for name in STORAGE_METHODS},
        },
        "`torch.UntypedStorage` on a card, loading and copying of storages",
    ),
    Patch(
        "to", {"torch.Tensor.to": _to}, '`x.to(…, device_layout=…)`; `"spyre"` as the current card'
    ),
    Patch(
        "factories",
        dict.fromkeys(
            ("torch.tensor", "torch.as_tensor", "torch.asarray", "torch.Tensor.new_tensor"),
            _with_current_card,
        ),
        '`"spyre"` as the current card in tensors made from data',
    ),
    Patch("empty", {"torch.empty": _empty}, "`torch.empty(…, device_layout=…)`"),
    Patch(
        "device_tensor_layout",
        dict.fromkeys(
            ("torch.Tensor.device_tensor_layout", "torch.overrides.get_ignored_functions")
        ),
        "`x.device_tensor_layout()`",
        _add_device_tensor_layout,
    ),
    Patch(
        "dlpack",
        {"torch.Tensor.__dlpack__": _to_dlpack},
        "a refusal instead of sticks that others take for elements",
    ),
    Patch(
        "pinning",
        {"torch.Tensor.pin_memory": _pin_memory, "torch.Tensor.is_pinned": _is_pinned},
        "`pin_memory`, also of data loaders",
    ),
    Patch(
        "modules",
        {"torch.nn.Module._apply": _lazily("tensors", "apply")},
        '`model.to("spyre")` keeps parameters, tied weights and optimizers',
    ),
    Patch(
        "data",
        {"torch.Tensor.data": _lazily("tensors", "set_data")},
        "`x.data = y` from one kind of device to another",
    ),
    Patch(
        "gradient_scaler",
        {"torch.amp.GradScaler.unscale_": _unscale},
        "`torch.amp.GradScaler`: torch inverts the scale in float64",
    ),
    Patch(
        "trace",
        {"torch.jit._trace._check_trace": _check_trace},
        "`torch.jit.trace`: torch compares the traced results in float64",
    ),
    Patch(
        "data_parallel",
        {"torch.nn.DataParallel.__init__": _data_parallel},
        "`torch.nn.DataParallel` is its module: torch scatters in C++, which it has with CUDA only",
    ),
    Patch(
        "backward",
        dict.fromkeys(
            ("torch.autograd.graph._engine_run_backward", "torch.autograd._engine_run_backward"),
            _backward,
        ),
        "backward passes on the caller's stream and cards",
    ),
    Patch(
        "profiler",
        {"torch.autograd.profiler.profile.__init__": _profile},
        'true times with `torch.autograd.profiler.profile(use_device="spyre")`',
    ),
    Patch(
        "profiled_memory",
        {
            "torch.autograd.profiler.profile._start_trace": _lazily("tensors.profiled", "start"),
            "torch.autograd.profiler.profile.__exit__": _lazily("tensors.profiled", "stop"),
        },
        "memory of cards with `torch.profiler.profile(profile_memory=True)`",
    ),
    Patch(
        "accelerator",
        {f"torch._C.{name}": function for name, function in FUNCTIONS.items()},
        "`torch.accelerator`",
        compat.replace,
    ),
    Patch("stream", {"torch.Stream": _stream}, "`torch.Stream` on a card", compat.redirect),
    Patch("event", {"torch.Event": _event}, "`torch.Event` on a card", compat.redirect),
    Patch(
        "generator", {"torch.Generator": _generator}, "`torch.Generator` of a card", compat.redirect
    ),
    Patch(
        "inductor",
        INSTALLERS,
        "`torch.compile`: the backend in `compile_fx`, and its options",
        lambda _: install_on_use(),
    ),
    Patch(
        "new_group",
        {"torch.distributed.distributed_c10d._new_process_group_helper": _of_groups("new_group")},
        "the cards' backend as the default one of groups with cards",
        _wrap_if_available,
    ),
    Patch(
        "collective_works",
        {
            f"{_WORK}.wait": _of_groups("wait"),
            f"{_WORK}.get_future": _of_groups("get_future"),
            "torch._C.Future.then": _of_groups("add_callback"),
            "torch._C.Future.add_done_callback": _of_groups("add_callback"),
            f"{_PROCESS_GROUP}._start_coalescing": _of_groups("start_coalescing"),
            f"{_PROCESS_GROUP}._end_coalescing": _of_groups("end_coalescing"),
        },
        "errors, timeouts, Ctrl-C, callbacks and coalescing of collectives of cards",
        with_groups=True,
    ),
    Patch(
        "destroy",
        {
            f"torch.distributed.{name}": _of_groups("destroy_process_group")
            for name in ("destroy_process_group", "distributed_c10d.destroy_process_group")
        },
        "groups of cards that end with their process group",
        with_groups=True,
    ),
    Patch(
        "ddp",
        {
            f"{_DDP}._ddp_init_helper": _of_groups("make_reducer"),
            f"{_DDP}._set_static_graph": _of_groups("set_static_graph"),
        },
        "`find_unused_parameters` and `static_graph`: torch stages a map in pinned memory",
        with_groups=True,
    ),
    Patch(
        "dtensor_random",
        {
            f"{_TRACKER}.__init__": _of_groups("initialise_tracker"),
            f"{_TRACKER}._distribute_region": _of_groups("distribute_region"),
        },
        "random DTensors: torch counts offsets that the cards' generators do not have",
        with_groups=True,
    ),
)
"""All patches, in the order of their installation."""


def install(with_groups: bool = False) -> None:
    """Install the patches that come with torch, after the device is registered, or with groups.

    LaunchError SPY904 if SPYRE_WITHOUT_PATCHES names an unknown patch.
    """
    left_out = {name.strip() for name in config.WITHOUT_PATCHES.read().split(",")} - {""}
    known = [patch.name for patch in PATCHES]
    if unknown := sorted(left_out.difference(known)):
        raise LaunchError(
            "SPY904",
            "SPYRE_WITHOUT_PATCHES names no patch of torch",
            expected=", ".join(known),
            found=", ".join(unknown),
        )
    for patch in PATCHES:
        if patch.with_groups == with_groups and patch.name not in left_out:
            patch.put(patch.targets)
