"""Kept bundles of compiled functions name arguments as the function does, where they correspond;
`first_wrong` calls the function by these names.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import spyre
from spyre.cli.run import main
from spyre.errors import LaunchError
from spyre.mlir.bundle import load_bundle
from spyre.mlir.operation import Origin
from spyre.torch_backend.inductor.base.sources import readable
from spyre.torch_backend.torch_reference import bind_inputs


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a compiled function and returns its bundles' directories."""
    torch._dynamo.reset()

    def run(function: Callable[..., Any], *args: Any, **named: Any) -> list[Path]:
        directory = tmp_path / f"kept{len(list(tmp_path.iterdir()))}"
        monkeypatch.setenv("SPYRE_KEEP", str(directory))
        with torch.no_grad():
            torch.compile(function)(*args, **named)
        torch.spyre.synchronize()
        return sorted(path.parent for path in directory.glob("*-sdsc_*/bundle.mlir"))

    return run


def card(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, dtype=torch.float16).to("spyre")


def names_of(bundle: Path) -> list[str | None]:
    spec = json.loads((bundle / "launch_spec.json").read_text())
    return [argument.get("name") for argument in spec["args"]]


def backwards(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.exp(b) - a


def test_arguments_used_in_another_order_than_declared(kept):
    (bundle,) = kept(backwards, card(4, 64), card(4, 64))
    assert names_of(bundle) == ["b", "a", None]
    assert spyre.first_wrong(bundle, backwards) is None
    swapped = spyre.first_wrong(bundle, lambda b, a: torch.exp(a) - b)
    assert swapped is not None
    assert swapped.order == ""


def attention(a: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.softmax(a, -1) * 3) + torch.relu(a)


def test_executes_name_their_operations(kept):
    (bundle,) = kept(attention, card(64, 128))
    read = load_bundle(bundle)
    origins = [read.operation(e.sdsc_filename).origin for e in read.module.executes()]
    assert set(origins) >= {
        Origin("softmax", "aten._softmax.default"),
        Origin("relu", "aten.relu.default"),
        Origin("relu_1", "aten.relu.default"),
        Origin("add", "aten.add.Tensor"),
    }
    assert spyre.first_wrong(bundle, attention) is None
    (summing,) = (file for file in bundle.glob("sdsc_*.json") if '"sum"' in file.read_text())
    summing.write_text(summing.read_text().replace('"sum"', '"max"'))
    found = spyre.first_wrong(bundle, attention)
    assert found is not None
    assert found.location.sdsc == summing.name


def test_functions_that_are_alike_but_for_names(kept):
    """Their graphs are the same to Inductor, which would take the code of one for the other."""

    def first(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.exp(a) - b

    def second(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return torch.exp(b) - a

    x, y = card(4, 64), card(4, 64)
    (one,), (other,) = kept(first, x, y), kept(second, x, y)
    assert (names_of(one), names_of(other)) == (["a", "b", None], ["b", "a", None])


def test_keywords_and_numbers(kept):
    def function(x: torch.Tensor, *, bias: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.exp(scale) * x * 0.25 + bias

    (bundle,) = kept(function, card(4, 64), scale=card(4, 64), bias=card(4, 64))
    assert [name for name in names_of(bundle) if name] == ["scale", "x", "bias"]
    spec = json.loads((bundle / "launch_spec.json").read_text())
    assert [argument["value"] for argument in spec["args"] if "value" in argument] == [0.25]
    assert spyre.first_wrong(bundle, function) is None
    given = {name: torch.zeros(4, 64).half().numpy() for name in ("x", "bias", "scale")}
    assert not spyre.run(bundle, inputs=given).outputs[0].any()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.second = torch.nn.Linear(64, 64)
        self.first = torch.nn.Linear(64, 64)
        self.register_buffer("scale", torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))) * self.scale


class Wrong(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(torch.relu(self.second(x))) * self.scale


def test_a_module(kept):
    model = Model().half()
    (bundle,) = kept(Model().half().to("spyre"), card(4, 64))
    inputs = {f"self.{name}" for name in (*dict(model.named_parameters()), "scale")}
    assert {name for name in names_of(bundle) if name} == {"x", *inputs}
    assert spyre.first_wrong(bundle, model) is None
    assert spyre.first_wrong(bundle, Wrong().half()) is not None


def test_calls_that_share_a_kernel(kept):
    """The bundle is kept of the first call, and so are its names."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.exp().cpu() + 1).to("spyre").exp()

    (bundle,) = kept(function, card(4, 64))
    assert names_of(bundle) == ["x", None]


def test_a_part_of_a_function(kept):
    """Behind a graph break, and where the graph writes, a name may stand for another value."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        x = torch.exp(x)
        torch._dynamo.graph_break()
        return x * 2

    first, second = kept(broken, card(4, 64))
    assert (names_of(first)[0], names_of(second)[0]) == ("x", None)

    def writing(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2).exp()

    assert all(name is None for name in names_of(kept(writing, card(4, 64))[0]))


def test_outputs_in_another_order(kept, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = torch.exp(x)
        second = torch.neg(first)
        return second, first, x > 0

    (bundle,) = kept(function, card(4, 64))
    assert spyre.first_wrong(bundle, function) is None
    wrong = spyre.first_wrong(bundle, lambda x: (-torch.exp(x), torch.exp(x) + 1, x > 0))
    assert wrong is not None
    file = tmp_path / "f.py"
    file.write_text("def f(x):\n    return -x.exp(), x.exp(), x > 0\n")
    assert main([str(bundle), "-q", "--expect", f"torch:{file}:f"]) == 0
    file.write_text("def f(x):\n    return -x.exp()\n")
    assert main([str(bundle), "-q", "--expect", f"torch:{file}:f"]) == 0
    file.write_text("def f(x):\n    return -x.exp(), x.exp(), x > 1\n")
    assert main([str(bundle), "-q", "--expect", f"torch:{file}:f", "--json"]) == 1
    compared = json.loads(capfd.readouterr().out)["comparisons"]
    assert sum(not each["ok"] for each in compared) == 1


def test_without_names():
    given = {"arg_0": "", "arg_2": ""}
    bound = bind_inputs(backwards, given)
    assert (bound.positional, bound.by_name) == (("arg_0", "arg_2"), {})
    assert bound.order.endswith("in order of first use: a is arg_0, b is arg_2")
    assert "input 0 is arg_0" in bind_inputs(torch.sub, given).order
    assert bind_inputs(backwards, {"arg_0": "x", "arg_2": "a"}).order
    assert bind_inputs(lambda *xs, **named: xs, {"arg_0": "x"}).positional == ("arg_0",)
    with pytest.raises(LaunchError, match="SPY623"):
        bind_inputs(backwards, {"arg_0": "a"})


def test_readable_names():
    assert readable("L['self']._modules['fc']._parameters['weight']") == "self.fc.weight"
    assert readable("L['z']['k'][0]") == "z['k'][0]"
    assert readable("G['model']._buffers['scale']") == "G['model'].scale"
