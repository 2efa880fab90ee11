"""Every private interface of torch 2.13 that this package uses, each symbol once.

``tests/torch_backend/test_compat.py`` has one test per symbol, so that a new release of torch that
removes a symbol fails the test that names it.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import pkgutil
import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad as _forward_ad, profiler as _profiler

PRIVATE_USE_1 = 20
"""c10::DeviceType::PrivateUse1."""

DispatchKey = torch._C.DispatchKey
CPU_KEYS = torch._C.DispatchKeySet(DispatchKey.CPU)
"""Redispatching to it runs ATen's CPU kernel, which for metadata operations keeps storage and
keys of the tensor it is given."""

NESTED_KEYS = torch._C.DispatchKeySet(DispatchKey.NestedTensorCPU)
"""Redispatching to it runs the CPU kernel of nested tensors."""

COMPOSITE_KEYS = torch._C.DispatchKeySet(DispatchKey.PrivateUse3)
"""Redispatching to it runs ATen's composition of an operation, for devices without a kernel for
it; the operations of the composition are dispatched as usual."""

reinterpret: Callable[..., torch.Tensor] = torch._C._dynamo.guards._reinterpret_tensor
"""(tensor, size, stride, offset that is added): the same storage seen otherwise, unchecked and
unknown to autograd."""

takes_numbers: Callable[[str], bool] = torch._C._should_allow_numbers_as_tensors
"""(aten name without overload): True if its tensor arguments may be given as numbers, which it then
wraps for type promotion."""

from_dlpack: Callable[[Any], torch.Tensor] = torch._C._from_dlpack


def register_device(name: str, module: Any) -> None:
    """Rename PrivateUse1 to ``name``, with guard, hooks, device module and generated methods."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(name, backend_module=module)
    _make_guard_native()
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=False, for_module=False, for_packed_sequence=False, for_storage=True
    )


def register_guard() -> None:
    """Register hooks and guard of PrivateUse1, for a package that sets its name and module."""
    from torch.utils.backend_registration import _DummyDeviceGuard, _DummyPrivateUse1Hook

    hook, guard = _DummyPrivateUse1Hook(), _DummyDeviceGuard()
    _registered.extend((hook, guard))
    torch._C._acc.register_python_privateuseone_hook(hook)
    torch._C._acc.register_python_privateuseone_device_guard(guard)
    _make_guard_native()


_registered: list[Any] = []
"""Registered objects, because C++ keeps no reference to them."""

_GUARD_CODE = {
    "x86_64": "b8 14 00 00 00  31 d2  c3",  # mov eax, 20; xor edx, edx; ret
    "aarch64": "80 02 80 d2  01 00 80 d2  c0 03 5f d6",  # mov x0, 20; mov x1, 0; ret
}
"""A function that returns `PRIVATE_USE_1` and 0: a type, its Device 0 or that one's Stream 0."""
_GUARD_METHODS = (0, 1, 2, 5, 8, 9)
"""In the table of c10::impl::DeviceGuardImplInterface: type, exchangeDevice, getDevice, getStream,
getNewStream, exchangeStream."""


def _make_guard_native() -> None:
    """Replace the C++ methods of the registered guard that call Python; the results are the same.

    C++ calls them from noexcept functions, also while it unwinds with a Python error set. Ctrl-C in
    Python, or the SystemError of a call with an error set, would end the process there. Does
    nothing on processors without `_GUARD_CODE`.
    """
    code = bytes.fromhex(_GUARD_CODE.get(platform.machine(), ""))
    if not code:
        return
    file = os.memfd_create("spyre-device-guard")
    try:
        os.write(file, code)
        page = mmap.mmap(file, len(code), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_EXEC)
    except OSError as error:  # a system may forbid memory that is made executable
        warnings.warn(f"an error in a hook of autograd may end the process: {error}", stacklevel=2)
        return
    finally:
        os.close(file)
    library = _libc10()
    registry = "_ZN3c104impl26device_guard_impl_registryE"
    guards = (ctypes.c_size_t * (PRIVATE_USE_1 + 1)).in_dll(library, registry)
    table_of_guard = ctypes.c_size_t.from_address(guards[PRIVATE_USE_1])
    word = ctypes.sizeof(ctypes.c_size_t)
    table = (ctypes.c_size_t * 34)()  # at least its size, with the two words before the methods
    ctypes.memmove(table, table_of_guard.value - 2 * word, ctypes.sizeof(table))
    for method in _GUARD_METHODS:
        table[2 + method] = np.frombuffer(page, np.uint8).ctypes.data
    _registered.extend((page, table))
    table_of_guard.value = ctypes.addressof(table) + 2 * word


@functools.cache
def _libc10() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))


private_use_name: Callable[[], str] = torch._C._get_privateuse1_backend_name
"""Returns the name of PrivateUse1 in this process."""


@functools.cache
def operator(name: str) -> Any:
    """The overload of an aten operator: ``"add.Tensor"``, ``"mm"``."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def without_autocast() -> Any:
    """A guard within which autocast of the device does not apply."""
    keys = torch._C.DispatchKeySet(DispatchKey.AutocastPrivateUse1)
    return torch._C._ExcludeDispatchKeyGuard(keys)


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of the C++ storage."""
    key: int = tensor.untyped_storage()._cdata
    return key


def schema_of(op: Any) -> Any:
    return op._schema


parse_to: Callable[..., tuple[Any, Any, bool, Any]] = torch._C._nn._parse_to
"""Device, dtype, non_blocking and memory format of the arguments of ``Tensor.to``."""


def let_script_call(function: Callable[..., Any], name: str) -> None:
    """Have ``torch.jit.script`` take calls of ``function`` for those of an aten operator."""
    from torch.jit import _builtins

    _builtins._register_builtin(function, name)


def is_fake(tensor: torch.Tensor) -> bool:
    """True for tensors of a tracer, which have no content."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


CpuGenerator: Any = torch._C.Generator
"""The class that ``torch.Generator`` was before it was redirected."""

neg_view: Callable[[torch.Tensor], torch.Tensor] = torch._neg_view


def redispatched(op: Any, keys: Any) -> Callable[..., Any]:
    """``op.redispatch`` to ``keys``, without a function in Python."""
    return functools.partial(op._handle.redispatch_boxed, keys)


def is_traced() -> bool:
    """True while torch's Python dispatcher replaces composite operations by decompositions."""
    key = torch._C.DispatchKey.PythonDispatcher
    return bool(torch._C._dispatch_tls_is_dispatch_key_included(key))


def composed(name: str, *args: Any) -> Any:
    """Run torch's composition of a composite operation, given by its aten name."""
    op = operator(name)
    return op.decompose(*args) if is_traced() else op.redispatch(COMPOSITE_KEYS, *args)


def is_observed() -> bool:
    """True if a dispatch mode or forward-mode differentiation has to see every operation."""
    return is_traced() or bool(
        torch._C._len_torch_dispatch_stack() or _forward_ad._current_level >= 0
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the tensor's elements fill a piece of its storage, each once."""
    return bool(torch._prims_common.is_non_overlapping_and_dense_or_false(tensor))


def skip_in_dynamo(function: Any) -> Any:
    """Make Dynamo skip ``function`` and the functions it calls; returns ``function``.

    Dynamo's skip lists do this for torch's files; this needs no import of Dynamo.
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    function_itself = getattr(function, "func", function)  # of a partial
    if hasattr(function_itself, "__code__"):  # Dynamo does not look into functions in C
        eval_frame.set_code_exec_strategy(function_itself.__code__, strategy)
    return function


# --- profiler -----------------------------------------------------------------------------------

ProfilerRange: Any = torch._C._profiler._RecordFunctionFast
"""``with ProfilerRange(name)``: a range of the profiler that runs."""

TRACE_BASE_STEP_S = 7_889_238
"""The times of ``export_chrome_trace`` count from the last multiple of it (a quarter of a year),
in seconds since 1970, that was over when the process began to profile."""


DYNAMIC_MARKS = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices")
"""Attributes of tensors that hold their dynamic dims."""


def register_backend(backend: Callable[..., Any]) -> None:
    """Give `torch.compile` a backend with the name of the function."""
    from torch._dynamo import register_backend

    register_backend(backend)


def compile_graph(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], marked: Sequence[Any]
) -> Callable[..., Any]:
    """Compile a graph for ``inputs`` by Inductor; dims that are marked dynamic in the same tensors
    of ``marked`` remain symbols.
    """
    from torch._inductor.compile_fx import compile_fx

    for source, target in zip(marked, inputs, strict=True):
        for name in DYNAMIC_MARKS:
            if hasattr(source, name):
                setattr(target, name, getattr(source, name))
    compiled: Callable[..., Any] = compile_fx(graph, inputs)
    return compiled


def profiler_is_on() -> bool:
    is_on: bool = _profiler._is_profiler_enabled
    return is_on


def report_memory(pointer: int, size_bytes: int, total_bytes: int, card: int) -> None:
    """Tell the profiler of ``size_bytes`` more memory on a card at ``pointer``, negative: less;
    ``total_bytes``: in use then.
    """
    report = _libc10()._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
    device = ctypes.c_uint16(PRIVATE_USE_1 | card << 8)  # c10::Device: two bytes in a register
    total = ctypes.c_size_t(total_bytes)
    report(ctypes.c_void_p(pointer), ctypes.c_int64(size_bytes), total, total, device)


TO_CARD = "spyre::copy to card"
TO_HOST = "spyre::copy to host"
ON_CARD = "spyre::copy on card"
"""Ranges of copies; a range is on the thread that enqueues."""
_NO_RANGE = nullcontext()


def launch_range(name: str) -> str:
    """Name of the range of a program's launches."""
    return f"spyre::{name}"


def profiled(name: str) -> AbstractContextManager[Any]:
    """A range ``name`` of the profiler, if one runs."""
    if profiler_is_on():
        profiler_range: AbstractContextManager[Any] = ProfilerRange(name)
        return profiler_range
    return _NO_RANGE


# --- functions of torch without a hook ----------------------------------------------------------


def install_config_module(module: Any) -> None:
    """Make a module one of torch's config modules: patched per thread, saved, hashed."""
    from torch.utils._config_module import install_config_module as install

    install(module)


def add_inductor_options(prefix: str, module: Any) -> None:
    """Add the settings of a config module to Inductor's config, as ``prefix.name``.

    Both names refer to the same entries, so a change under one name is a change under the other.
    ``torch.compile(options=…)`` takes them like those of Inductor, and refuses unknown ones.
    """
    from torch._inductor import config
    from torch.utils._config_module import SubConfigProxy

    for name, entry in module._config.items():
        config._config[f"{prefix}.{name}"] = entry
    vars(config)[prefix] = SubConfigProxy(config, f"{prefix}.")


def _stand_at(function: Callable[..., Any], owner: Any, name: str) -> None:
    """``owner.name`` is ``function`` from now on, and that is where pickle looks for it."""
    is_module = isinstance(owner, ModuleType)
    function.__module__ = owner.__name__ if is_module else owner.__module__
    function.__qualname__ = name if is_module else f"{owner.__qualname__}.{name}"
    setattr(owner, name, skip_in_dynamo(function))


def _place(target: str) -> tuple[Any, str]:
    """Return the module or class of a dotted name, and the name in it."""
    path, _, name = target.rpartition(".")
    return pkgutil.resolve_name(path), name


def wrap(targets: Mapping[str, Callable[..., Any]]) -> None:
    """Run ``around(original, …)`` from now on for calls of functions and methods; ``targets``:
    ``around`` by dotted name. For ``torch.Tensor.data``, a write to it is the call.
    """
    for target, around in targets.items():
        owner, name = _place(target)
        if target == "torch.Tensor.data":
            _wrap_tensor_data(around)
        elif owner is torch.Tensor:
            _wrap_tensor_method(name, around)
        elif owner is torch:
            _wrap_function(name, around)
        else:
            _wrap_method(owner, name, around)


def _wrap_method(owner: type | ModuleType, name: str, around: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    _stand_at(method, owner, name)


def _wrap_tensor_method(name: str, around: Callable[..., Any]) -> None:
    """`_wrap_method` for ``torch.Tensor``; subclasses and modes see ``torch.Tensor.NAME``."""
    from torch.overrides import handle_torch_function, has_torch_function_unary

    original = getattr(torch.Tensor, name)

    @functools.wraps(original)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if has_torch_function_unary(self):
            return handle_torch_function(method, (self,), self, *args, **kwargs)
        return around(original, self, *args, **kwargs)

    _stand_at(method, torch.Tensor, name)
    allowed = torch.nn.parameter.UninitializedTensorMixin._allowed_methods
    if original in allowed:
        allowed.append(method)


def ignore_in_overrides(method: Callable[..., Any]) -> None:
    """Add a tensor method to torch's list of functions that ``__torch_function__`` ignores.

    The list is made at its first use, because it names functions that importing parts of torch
    replaces.
    """
    original = torch.overrides.get_ignored_functions

    @functools.cache
    @functools.wraps(original)
    def get_ignored_functions() -> set[Callable[..., Any]]:
        return {*original(), method}

    torch.overrides.get_ignored_functions = get_ignored_functions


def _wrap_tensor_data(set_data: Callable[..., None]) -> None:
    """``set_data(original, tensor, new)`` is run for ``tensor.data = new``."""
    original = torch._C.TensorBase.data
    get, original_set, delete = original.__get__, original.__set__, original.__delete__

    def assign(tensor: torch.Tensor, new: torch.Tensor) -> None:
        set_data(original_set, tensor, new)

    torch.Tensor.data = property(get, skip_in_dynamo(assign), delete, original.__doc__)


def _wrap_function(name: str, around: Callable[..., Any]) -> None:
    """`_wrap_method` for ``torch``; torch function modes see ``torch.NAME``."""
    from torch.overrides import handle_torch_function

    original = getattr(torch, name)
    has_mode = torch._C._is_torch_function_mode_enabled

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if has_mode():
            return handle_torch_function(function, (), *args, **kwargs)
        return around(original, *args, **kwargs)

    _stand_at(function, torch, name)
    table = torch.jit._builtins._builtin_table
    if table is not None:
        table[id(function)] = f"aten::{name}"


accelerator_of_data_parallel: Callable[[], str | None] = torch._utils._get_available_device_type
"""The type of device that `torch.nn.DataParallel` moves modules to; None without any."""


def replace(targets: Mapping[str, Callable[..., Any]]) -> None:
    """Put functions in the place of those of these names."""
    for target, function in targets.items():
        owner, name = _place(target)
        getattr(owner, name)
        setattr(owner, name, skip_in_dynamo(function))


def redirect(targets: Mapping[str, Callable[..., Any]]) -> None:
    """`_redirect_constructor` of ``torch``, for functions by ``torch.NAME``."""
    for target, make in targets.items():
        _redirect_constructor(_place(target)[1], make)


def _redirect_constructor(name: str, make: Callable[..., Any]) -> None:
    """Make ``torch.NAME(…)`` return ``make(…)``, or call the original if that returns None.

    For types written in C, which cannot be changed: the name then refers to a subclass that counts
    every instance of the original as an instance.
    """
    original: Any = getattr(torch, name)

    class Redirected(type(original)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is not replacement:
                return super().__call__(*args, **kwargs)
            made = make(*args, **kwargs)
            return original(*args, **kwargs) if made is None else made

        def __instancecheck__(cls, instance: Any) -> bool:
            if cls is replacement:
                return isinstance(instance, original)
            return bool(super().__instancecheck__(instance))

        def __subclasscheck__(cls, subclass: type) -> bool:
            if cls is replacement:
                return issubclass(subclass, original)
            return bool(super().__subclasscheck__(subclass))

    # A class is pickled by where it is found, and objects of it by their class.
    namespace = {"__module__": "torch", "__doc__": original.__doc__}
    replacement = Redirected(original.__name__, (original,), namespace)
    setattr(torch, name, replacement)
