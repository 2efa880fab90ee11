"""Changed functions of torch behave like the originals on other devices, and can be left out.

For every patch the same calls run in a process with the device and in one without; their results
and errors are compared.
"""

from __future__ import annotations

import pytest

from spyre.errors import LaunchError
from spyre.torch_backend.registration import patches
from tests.torch_backend.processes import run, run_bare

CALLS = r"""
import copy, datetime, io, pickle
import torch
import torch.distributed as dist
import torch.distributed.tensor
import warnings

warnings.simplefilter("ignore")
if hasattr(torch, "spyre"):
    from spyre.torch_backend.registration import patches
    patches.install(with_groups=True)

def optimizer():
    layer = torch.nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    return torch.optim.SGD(layer.parameters(), 0.1)

def scaled(enabled, used):
    scaler, sgd = torch.amp.GradScaler("cpu", enabled=enabled), optimizer()
    if used:
        scaler.scale(torch.ones(1))
    scaler.unscale_(sgd)
    scaler.step(sgd)
    scaler.update()
    return scaler.get_scale(), scaler.state_dict()

def unscaled_twice():
    scaler, sgd = torch.amp.GradScaler("cpu"), optimizer()
    scaler.scale(torch.ones(1))
    scaler.unscale_(sgd)
    scaler.unscale_(sgd)

def again(value):
    return pickle.loads(pickle.dumps(value))

def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)

def legacy():
    file = io.BytesIO()
    torch.save(x, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    return torch.load(file)

def set_items(storage):
    storage[0] = 7
    storage[1:3] = 5
    return storage.tolist()

def shared_file():
    return torch.zeros(2).untyped_storage()._share_filename_cpu_()[2]

def printed_with_options():
    torch.set_printoptions(precision=2, sci_mode=True)
    text = repr(x / 3)
    torch.set_printoptions(profile="default")
    return text

def under_default_device():
    with torch.device("meta"):
        return torch.tensor([1]).device, torch.as_tensor([1]).device, torch.empty(1).device

def adds(x):
    return x + torch.tensor([1.0, 2, 3]) + torch.as_tensor(2)

def same_parameters():
    layer = torch.nn.Linear(2, 2)
    weight = layer.weight
    return layer.double().weight is weight, layer.to("meta").weight is weight

def data_shared():
    a, b = torch.ones(2, requires_grad=True), torch.zeros(3)
    a.data = b
    b.add_(1)
    return a, a.is_leaf

def autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.mm(x, x.t()).dtype, torch.is_autocast_enabled("cpu"), (x + x).dtype

def checkpointed():
    from torch.utils.checkpoint import checkpoint
    a = torch.ones(2, requires_grad=True)
    checkpoint(torch.exp, a, use_reentrant=False).sum().backward()
    return a.grad

def backward(twice=False):
    x = torch.ones(3, requires_grad=True)
    y = x.pow(2).sum()
    y.backward()
    if twice:
        y.backward()
    return x.grad

def traced():
    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(function.__name__)
            return function(*args, **(kwargs or {}))
    names = []
    with Seen():
        torch.empty(2).to(torch.int32).is_pinned()
    return names

class Casts(torch.nn.Module):
    def forward(self, x):
        return x.to(torch.float64) + torch.empty(2, 3).zero_()

x = torch.arange(6.0).view(2, 3)
storage = torch.UntypedStorage([1, 2, 3])
layer = torch.nn.Linear(2, 2)
def in_group(function):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return function()
    finally:
        dist.destroy_process_group()

def reduced():
    values = torch.ones(3)
    first = dist.all_reduce(values, async_op=True)
    waited = first.wait()
    last = dist.all_reduce(values, async_op=True)
    last.wait(datetime.timedelta(seconds=60))
    return values, waited, last.is_completed()

def replicated(static):
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(3, 2), find_unused_parameters=not static, static_graph=static
    )
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
    return [p.grad for p in model.parameters()]

def distributed_random():
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.manual_seed(1)
    return torch.distributed.tensor.randn(4, device_mesh=mesh).to_local(), torch.randn(1)

def functions_without_overrides():
    from torch import overrides
    known = {*overrides.get_testing_overrides(), *overrides.get_ignored_functions()}
    listed = [f for functions in overrides.get_overridable_functions().values() for f in functions]
    return sorted(overrides.resolve_name(f) for f in listed if f not in known)

def replicas(seen):
    torch.nn.init.ones_(layer.weight)
    return seen(torch.nn.DataParallel(layer, dim=1))

def threads():
    import threading
    results = []
    def run():
        x = torch.ones(2, requires_grad=True)
        (x * 3).sum().backward()
        results.append(x.grad)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results

def hooked():
    x, seen = torch.ones(2, requires_grad=True), []
    y = x * 2
    y.register_hook(lambda grad: seen.append(grad.detach().clone()))
    y.sum().backward(retain_graph=True, create_graph=True)
    return seen, x.grad.requires_grad, torch.autograd.grad(y.sum(), x, allow_unused=True)

def profiled(**options):
    with torch.autograd.profiler.profile(**options) as profile:
        torch.ones(3).add(1)
    return sorted({event.key for event in profile.key_averages()})

def compiled():
    from torch._inductor import config
    assert ("spyre.auto_tile" in config._config) == hasattr(torch, "spyre")
    known = sorted(name for name in config._config if not name.startswith("spyre."))
    return len(known), torch.compile(lambda x: (x @ x).sin() + x.sum(0))(torch.eye(3))

def profiled_memory():
    with torch.profiler.profile(profile_memory=True) as prof:
        torch.empty(64)
    return [e.self_cpu_memory_usage for e in prof.key_averages() if e.key == "aten::empty"]

calls = {
    "printing": {
        "text": lambda: (x, x.to_sparse(), torch.nn.Parameter(x), torch.empty(1, device="meta")),
        "kinds": lambda: (x.to(torch.complex64), x.bool(), x.to(torch.int8), torch.tensor(1e30)),
        "large": lambda: (torch.arange(2000.0), x.expand(30, 2, 3), torch.zeros(0, 3)),
        "options": printed_with_options,
        "gradients": lambda: (torch.ones(2, requires_grad=True) * 2),
    },
    "storages": {
        "new": lambda: (storage.tolist(), torch.UntypedStorage(4, device="meta").device),
        "wrong": lambda: torch.UntypedStorage("x"),
        "wrong device": lambda: torch.UntypedStorage(4, device="nonsense"),
        "items": lambda: (storage[1], storage[0:2].tolist(), list(storage), str(storage)),
        "no item": lambda: storage[5],
        "changed": lambda: (storage.clone().fill_(3).tolist(), storage.is_shared()),
        "set": lambda: set_items(storage.clone()),
        "resized": lambda: torch.UntypedStorage(3).resize_(7).nbytes(),
        "sizes": lambda: (storage.nbytes(), storage.size(), torch.empty(5, device="meta").nbytes),
        "shared": lambda: (torch.ones(2).share_memory_().is_shared(), shared_file()),
        "method pickled": lambda: again(torch.UntypedStorage.clone) is torch.UntypedStorage.clone,
        "file": lambda: saved({"x": x, "s": storage.nbytes()}),
        "views in a file": lambda: saved((x[0], x.t(), torch.nn.Parameter(x), x.half(), x > 2)),
        "mapped": lambda: saved(x, map_location="meta").device,
        "mapped to nonsense": lambda: saved(x, map_location="nonsense"),
        "legacy": legacy,
        "copies": lambda: (copy.deepcopy(x), copy.copy(x), copy.deepcopy(layer).weight.shape),
        "typed": lambda: torch.FloatStorage([1.0, 2.0]).tolist(),
    },
    "to": {
        "to": lambda: (x.to(torch.float64), x.to(), x.to("cpu"), x.to("meta").device),
        "to itself": lambda: (x.to("cpu") is x, x.to(x) is x, x.to("cpu", copy=True) is x),
        "to nowhere": lambda: x.to("nonsense"),
        "to cuda": lambda: x.to("cuda"),
        "to with what": lambda: x.to(what=1),
        "pickled": lambda: again(torch.Tensor.to) is torch.Tensor.to,
        "modes": traced,
        "fx": lambda: torch.fx.symbolic_trace(Casts()).code,
        "export": lambda: str(torch.export.export(Casts(), (x,)).graph),
        "name": lambda: torch.overrides.resolve_name(torch.Tensor.to),
    },
    "factories": {
        "data": lambda: (torch.tensor([1, 2]), torch.tensor(1.5), torch.tensor([[True]])),
        "options": lambda: torch.tensor([1, 2.0], dtype=torch.float16, requires_grad=True),
        "no data": lambda: torch.tensor(),
        "ragged": lambda: torch.tensor([[1], [2, 3]]),
        "of a tensor": lambda: (torch.as_tensor(x) is x, torch.asarray(x) is x),
        "of arrays": lambda: (torch.as_tensor(x.numpy()), torch.asarray([1, 2], copy=True)),
        "elsewhere": lambda: torch.tensor([1], device="meta").device,
        "nowhere": lambda: torch.tensor([1], device="nonsense"),
        "default device": under_default_device,
        "like": lambda: (x.new_tensor([1, 2]), x.new_tensor(3, dtype=torch.int8)),
        "compiled": lambda: torch.compile(adds, fullgraph=True, backend="eager")(x),
        "scripted": lambda: again(torch.tensor) is torch.tensor,
    },
    "empty": {
        "empty": lambda: (torch.empty(2, 3).shape, torch.empty((2,), device="meta").device),
        "with what": lambda: torch.empty(2, what=1),
        "pickled": lambda: again(torch.empty) is torch.empty,
        "out": lambda: torch.empty(2, out=torch.ones(2)).shape,
        "negative": lambda: torch.empty(-1),
    },
    "device_tensor_layout": {
        "copied": lambda: sorted(copy.copy(x).__dict__),
        "overridden": functions_without_overrides,
    },
    "dlpack": {
        "there and back": lambda: torch.from_dlpack(x),
        "of a gradient": lambda: torch.ones(2, requires_grad=True).__dlpack__(),
        "device": lambda: (x.__dlpack_device__(), x.__dlpack__(max_version=(1, 0)) is None),
    },
    "pinning": {
        "for cuda": lambda: (x.is_pinned("cuda"), x.pin_memory("cuda")),
        "is it": lambda: (x.is_pinned(), torch.empty(0).is_pinned()),
    },
    "modules": {
        "to": lambda: (layer.to("meta").to_empty(device="cpu").weight.shape),
        "half": lambda: copy.deepcopy(layer).half().weight.dtype,
        "identity": same_parameters,
        "lazy": lambda: torch.nn.LazyLinear(3).double()(torch.ones(1, 2).double()).dtype,
        "pickled": lambda: again(torch.nn.Module._apply) is torch.nn.Module._apply,
        "wrong": lambda: layer.to(torch.int32),
        "recurrent": lambda: torch.nn.LSTM(2, 3).double()(torch.ones(1, 1, 2).double())[0].shape,
    },
    "data": {
        "number": lambda: setattr(x, "data", 3),
        "another type": lambda: setattr(x, "data", torch.zeros(2, dtype=torch.int64)),
        "delete": lambda: delattr(x, "data"),
        "shared": data_shared,
    },
    "gradient_scaler": {
        "disabled": lambda: scaled(False, True),
        "disabled, unused": lambda: scaled(False, False),
        "enabled": lambda: scaled(True, True),
        "unused": lambda: scaled(True, False),
        "twice": unscaled_twice,
        "cuda": lambda: torch.amp.GradScaler("cuda", enabled=False).unscale_(optimizer()),
        "pickled": lambda: again(torch.amp.GradScaler("cpu")).get_scale(),
        "autocast": autocast,
    },
    "trace": {
        "checked": lambda: torch.jit.trace(layer, x[:, :2])(x[:, :2]),
        "integers": lambda: torch.jit.trace(lambda a: a.double() * 2, torch.arange(3))(x),
    },
    "data_parallel": {
        "called": lambda: replicas(lambda wrapper: wrapper(x[:, :2])),
        "state": lambda: replicas(lambda wrapper: (sorted(wrapper.state_dict()), wrapper)),
        "where": lambda: replicas(lambda wrapper: (wrapper.device_ids, layer.weight.device)),
        "with ids": lambda: torch.nn.DataParallel(layer, device_ids=[0]).device_ids,
        "without a module": lambda: torch.nn.DataParallel(),
    },
    "backward": {
        "backward": backward,
        "twice": lambda: backward(True),
        "without": lambda: torch.ones(1).backward(),
        "grad": lambda: torch.autograd.grad(torch.ones(1).sum(), torch.ones(1)),
        "thread": threads,
        "hooks": hooked,
        "multithreading": lambda: torch.autograd.is_multithreading_enabled(),
        "checkpoint": checkpointed,
    },
    "profiler": {
        "cpu": profiled,
        "kineto": lambda: profiled(use_kineto=True),
        "nonsense": lambda: profiled(use_device="nonsense"),
    },
    "accelerator": {
        "cpu": lambda: (torch.get_device_module("cpu").__name__, torch.cuda.is_available()),
    },
    "stream": {
        "class": lambda: again(torch.Stream) is torch.Stream,
        "cpu": lambda: (torch.Stream("cpu"), issubclass(torch.cuda.Stream, torch.Stream)),
    },
    "event": {
        "class": lambda: again(torch.Event) is torch.Event,
        "cpu": lambda: torch.Event("cpu"),
    },
    "generator": {
        "pickled": lambda: again(torch.Generator().manual_seed(5)).initial_seed(),
        "class": lambda: again(torch.Generator) is torch.Generator,
        "devices": lambda: (torch.Generator().device, torch.Generator(device="cpu").device),
        "of cuda": lambda: torch.Generator("cuda"),
        "with what": lambda: torch.Generator(what=1),
        "is one": lambda: isinstance(torch.default_generator, torch.Generator),
        "draws": lambda: torch.rand(2, generator=torch.Generator().manual_seed(1)),
    },
    "profiled_memory": {"of the CPU": profiled_memory},
    "inductor": {"compiled": compiled},
    "new_group": {"of gloo": lambda: in_group(lambda: dist.get_backend(dist.new_group([0])))},
    "collective_works": {"gloo": lambda: in_group(reduced)},
    "destroy": {
        "twice": lambda: (in_group(int), in_group(int), dist.is_initialized()),
        "none": lambda: dist.destroy_process_group(),
    },
    "ddp": {
        "unused": lambda: in_group(lambda: replicated(False)),
        "static": lambda: in_group(lambda: replicated(True)),
    },
    "dtensor_random": {"normal": lambda: in_group(distributed_random)},
}

def outcome(call):
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

for kind, named in calls.items():
    for name, call in named.items():
        print(kind, name, "=>", outcome(call).replace("\n", " "))
"""


@pytest.fixture(scope="module")
def outcomes():
    return run_bare(CALLS).splitlines(), run(CALLS).splitlines()


NAMES = [patch.name for patch in patches.PATCHES]


@pytest.mark.parametrize("name", NAMES)
def test_other_devices_see_torchs_own_behaviour(outcomes, name):
    own, ours = ([line for line in lines if line.startswith(f"{name} ")] for lines in outcomes)
    assert own
    assert ours == own


LOOK = """
import operator
import torch
import torch.distributed.tensor._random
from spyre.torch_backend.registration import patches

def look():
    targets = [t for p in patches.PATCHES if p.name != "inductor" for t in p.targets]
    return {t: value(t.removeprefix("torch.")) for t in targets}

def value(path):
    try:
        return operator.attrgetter(path)(torch)
    except AttributeError:
        return None

def changed(before):
    return {t for t, after in look().items() if after is not before[t]}

before = look()
"""


def test_a_patch_replaces_its_targets_and_nothing_else():
    code = """
    from spyre.torch_backend import compat
    from spyre.torch_backend.registration import make_module
    compat.register_device("spyre", make_module())
    for patch in patches.PATCHES:
        before = look()
        patch.put(patch.targets)
        assert changed(before) == set(patch.targets if patch.name != "inductor" else ()), patch
    """
    run_bare(code, LOOK)


def test_patches_that_are_left_out():
    code = """
    from spyre.torch_backend import autoload
    autoload()
    patches.install(with_groups=True)
    import sys
    print(*sorted(changed(before)), [type(finder).__module__ for finder in sys.meta_path])
    """
    printed = run_bare(code, LOOK, SPYRE_WITHOUT_PATCHES=", ".join(NAMES))
    assert printed.startswith("[")
    assert "spyre" not in printed
    kept = [name for name in NAMES if name not in ("stream", "event")]
    printed = run_bare(code, LOOK, SPYRE_WITHOUT_PATCHES=",".join(kept))
    assert printed.startswith("torch.Event torch.Stream [")


def test_a_patch_that_is_not_there(monkeypatch):
    monkeypatch.setenv("SPYRE_WITHOUT_PATCHES", "printing,nonsense")
    with pytest.raises(LaunchError, match=r"(?s)SPY904.*nonsense"):
        patches.install()
