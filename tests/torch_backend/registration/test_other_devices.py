"""What is changed in torch behaves as torch's own for every other device.

The same calls run in a process with the device and in one without; what they return or raise is
compared.
"""

from __future__ import annotations

import pytest

from tests.torch_backend.processes import PROLOGUE, run

CALLS = r"""
import copy, io, pickle
import torch

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

def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)

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
calls = {
    "amp": {
        "disabled": lambda: scaled(False, True),
        "disabled, unused": lambda: scaled(False, False),
        "enabled": lambda: scaled(True, True),
        "unused": lambda: scaled(True, False),
        "twice": unscaled_twice,
        "cuda": lambda: torch.amp.GradScaler("cuda", enabled=False).unscale_(optimizer()),
    },
    "pickle": {
        "generator": lambda: again(torch.Generator().manual_seed(5)).initial_seed(),
        "generator class": lambda: again(torch.Generator) is torch.Generator,
        "stream class": lambda: again(torch.Stream) is torch.Stream,
        "event class": lambda: again(torch.Event) is torch.Event,
        "empty": lambda: again(torch.empty) is torch.empty,
        "to": lambda: again(torch.Tensor.to) is torch.Tensor.to,
        "storage method": lambda: again(torch.UntypedStorage.clone) is torch.UntypedStorage.clone,
        "apply": lambda: again(torch.nn.Module._apply) is torch.nn.Module._apply,
        "scaler": lambda: again(torch.amp.GradScaler("cpu")).get_scale(),
        "file": lambda: saved({"x": x, "s": storage.nbytes()}),
    },
    "tensors": {
        "to": lambda: (x.to(torch.float64), x.to(), x.to("cpu"), x.to("meta").device),
        "to nowhere": lambda: x.to("nonsense"),
        "to cuda": lambda: x.to("cuda"),
        "to with what": lambda: x.to(what=1),
        "pinned for cuda": lambda: (x.is_pinned("cuda"), x.pin_memory("cuda")),
        "empty": lambda: (torch.empty(2, 3).shape, torch.empty((2,), device="meta").device),
        "empty with what": lambda: torch.empty(2, what=1),
        "data": lambda: setattr(x, "data", 3),
        "data of another type": lambda: setattr(x, "data", torch.zeros(2, dtype=torch.int64)),
        "delete data": lambda: delattr(x, "data"),
        "dlpack": lambda: torch.from_dlpack(x),
        "dlpack of a gradient": lambda: torch.ones(2, requires_grad=True).__dlpack__(),
        "modes": traced,
        "fx": lambda: torch.fx.symbolic_trace(Casts()).code,
        "export": lambda: str(torch.export.export(Casts(), (x,)).graph),
        "name": lambda: torch.overrides.resolve_name(torch.Tensor.to),
        "text": lambda: (x, x.to_sparse(), torch.nn.Parameter(x), torch.empty(1, device="meta")),
    },
    "storages": {
        "new": lambda: (storage.tolist(), torch.UntypedStorage(4, device="meta").device),
        "wrong": lambda: torch.UntypedStorage("x"),
        "items": lambda: (storage[1], storage[0:2].tolist(), list(storage), str(storage)),
        "no item": lambda: storage[5],
        "changed": lambda: (storage.clone().fill_(3).tolist(), storage.is_shared()),
    },
    "modules": {
        "to": lambda: (layer.to("meta").to_empty(device="cpu").weight.shape),
        "half": lambda: copy.deepcopy(layer).half().weight.dtype,
        "lazy": lambda: torch.nn.LazyLinear(3).double()(torch.ones(1, 2).double()).dtype,
    },
    "autograd": {
        "backward": backward,
        "twice": lambda: backward(True),
        "without": lambda: torch.ones(1).backward(),
        "grad": lambda: torch.autograd.grad(torch.ones(1).sum(), torch.ones(1)),
    },
    "constructors": {
        "generators": lambda: (torch.Generator().device, torch.Generator(device="cpu").device),
        "of cuda": lambda: torch.Generator("cuda"),
        "with what": lambda: torch.Generator(what=1),
        "is one": lambda: isinstance(torch.default_generator, torch.Generator),
        "stream": lambda: (torch.Stream("cpu"), issubclass(torch.cuda.Stream, torch.Stream)),
        "event": lambda: torch.Event("cpu"),
    },
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
    own = run(CALLS, "", TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONWARNINGS="ignore")
    ours = run(CALLS, PROLOGUE, PYTHONWARNINGS="ignore")
    return own.splitlines(), ours.splitlines()


@pytest.mark.parametrize(
    "kind", ["amp", "pickle", "tensors", "storages", "modules", "autograd", "constructors"]
)
def test_other_devices_see_torchs_own_behaviour(outcomes, kind):
    own, ours = ([line for line in lines if line.startswith(f"{kind} ")] for lines in outcomes)
    assert own
    assert ours == own
