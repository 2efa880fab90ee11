"""Profiles, traces and reports name the line and the module each execute of a compiled kernel
stands for.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from spyre.runtime.flex import SourcePlace
from spyre.torch_backend.inductor.base import sources

HERE = Path(__file__)


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()


def line_of(text: str) -> int:
    """The first line of this file that ends with ``text``."""
    lines = HERE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(text))


def card(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, dtype=torch.float16).to("spyre")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)  # the product
        return torch.exp(y)  # the exponential


def test_a_module_forward_and_backward(tmp_path: Path):
    model, x = Model().half().to("spyre"), card(4, 64)
    compiled = torch.compile(model)
    with torch.spyre.profile() as profile:
        compiled(x).sum().backward()
    found = {
        (op, place["line"], place["module"], place["backward"])
        for execute in profile.of_card().to_json()["executes"]
        for place in execute["sources"]
        for op in [execute["op"]]
    }
    product, exponential = line_of("# the product"), line_of("# the exponential")
    expected = {
        ("batchmatmul", product, "self.fc", False),
        ("exp", exponential, "", False),
        ("mul", exponential, "", True),
        ("batchmatmul", product, "self.fc", True),
    }
    assert expected <= found
    assert {line for _, line, *_ in found} == {product, exponential}

    text = str(profile)
    assert f"test_source_lines.py:{product}" in text
    assert "self.fc (backward)" in text
    assert "not compiled: no line is known" in text  # the sum is eager
    profile.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text().replace("<wbr>", "")
    for name in ("sources", "bottlenecks"):
        section = page.split(f'<section id="{name}"')[1].split("</section>")[0]
        assert f"test_source_lines.py:{product}" in section
    profile.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    shown = [event["args"]["source"] for event in events if "source" in event.get("args", {})]
    assert any(source[0].endswith(f"test_source_lines.py:{exponential}") for source in shown)


def lines_of(function: Callable[..., Any], *args: torch.Tensor) -> list[list[int]]:
    """Lines of the rows of a profile of the compiled function."""
    with torch.spyre.profile() as profile, torch.no_grad():
        torch.compile(function)(*args)
    rows = profile.of_card().to_json()["sources"]
    return sorted([place["line"] for place in row["places"]] for row in rows)


def loaded(path: Path, text: str) -> Callable[..., Any]:
    """The function ``f`` of a file."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.f


FUNCTION = "import torch\n\ndef f(x):\n    x = x.exp()\n    return x * 2\n"


def test_cached_code_after_an_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Code from Inductor's cache is that of the file as it was; lines are those it has now."""
    x = card(4, 64)
    assert lines_of(loaded(tmp_path / "old.py", FUNCTION), x) == [[4], [5]]
    monkeypatch.setattr(sources, "_lines", {})
    sources._places.cache_clear()
    torch._dynamo.reset()
    counters.clear()
    assert lines_of(loaded(tmp_path / "new.py", f"# a comment\n{FUNCTION}"), x) == [[5], [6]]
    assert not counters["inductor"]["fxgraph_cache_miss"]


def test_functions_that_share_their_code(tmp_path: Path):
    """A kernel of both: nothing says which of them runs it."""
    x = card(8, 64)
    assert lines_of(loaded(tmp_path / "one.py", FUNCTION.replace("2", "3")), x) == [[4], [5]]
    other = loaded(tmp_path / "other.py", "\n\n" + FUNCTION.replace("2", "3"))
    torch._dynamo.reset()
    assert lines_of(other, x) == [[4, 6], [5, 7]]


def test_calls_that_share_a_kernel():
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.exp().cpu() + 1  # the first call
        return y.to("spyre").exp()  # the second call

    expected = [[line_of("# the first call")], [line_of("# the second call")]]
    assert [row for row in lines_of(function, card(4, 64)) if row] == expected


def test_sizes_that_are_symbols():
    """A program for any number of rows has no lines; those of single sizes have the right ones."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.abs() * 2 + x

    compiled = torch.compile(function, dynamic=True)
    with torch.spyre.profile() as profile, torch.no_grad():
        compiled(card(6, 64))
        compiled(card(10, 64))
    rows = profile.of_card().to_json()["sources"]
    lines = {place["line"] for row in rows for place in row["places"]}
    assert lines <= {line_of("x.abs() * 2 + x")}


def test_eager_operations_have_no_lines():
    with torch.spyre.profile() as profile:
        card(4, 64).exp()
    assert profile.of_card().to_json()["sources"] == []
    assert "no line" not in str(profile)


def test_stack_traces():
    trace = '  File "/a.py", line 1, in f\n    g(x)\n  File "/b.py", line 22, in g\n    x + 1\n'
    assert sources._place("fc", trace) == SourcePlace("fc", "/b.py", 22)
    inside = f'{trace}  File "{torch.__file__}", line 3, in h\n'
    assert sources._place("fc", inside) == SourcePlace("fc", "/b.py", 22)
    assert sources._place("fc", "") is sources._place("", "somewhere") is None


def test_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert str(SourcePlace("fc", str(tmp_path / "a/m.py"), 3)) == "a/m.py:3 in fc"
    assert (
        str(SourcePlace("", "/site/torch/nn/m.py", 3, is_backward=True)) == "nn/m.py:3 (backward)"
    )
