"""Objects in a notebook: what IPython would show, and that it is asked to."""

from __future__ import annotations

import json
import sys
from importlib import import_module, reload
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

import spyre
from spyre import notebook
from spyre.layout import SpyreTensorLayout

SOFTMAX = Path(__file__).parents[1] / "examples" / "softmax"


@pytest.fixture(scope="module")
def result():
    return spyre.run(str(SOFTMAX))


def _text(html: str) -> str:
    """Return the text of well-formed HTML."""
    return "".join(ElementTree.fromstring(f"<div>{html}</div>").itertext())


def test_a_bundle_is_its_graph_and_its_operations():
    html = notebook.bundle_html(spyre.load_bundle(SOFTMAX))
    assert html.startswith("<svg")
    assert "5 operations" in _text(html)


def test_a_result_has_a_row_per_output(result):
    text = _text(notebook.result_html(result))
    assert "[128, 256]" in text
    assert "not compared" in text


def test_a_wrong_output_is_marked(result):
    compared = {0: SimpleNamespace(ok=False)}
    wrong = SimpleNamespace(output_tensors=result.output_tensors, comparisons=compared, findings=())
    assert "wrong" in _text(notebook.result_html(wrong))


def test_a_profile_is_its_table(result):
    text = _text(notebook.profile_html(spyre.profile(result)))
    assert "realdiv" in text
    assert "all times are modelled" in text


def test_tensors_and_layouts():
    card = spyre.FlexDevice()
    tensor = card.to_device(np.ones((4, 128), np.float16), "x")
    assert "Layout of x" in notebook.tensor_html(tensor)
    layout = SpyreTensorLayout.from_host((4, 128), "float16")
    assert "1,024 bytes" in _text(notebook.layout_html(layout))
    card.close()


def test_names_are_escaped(result):
    tensor = SimpleNamespace(name="<b>", shape=(1,), dtype_name="float16")
    shown = SimpleNamespace(output_tensors=[tensor], comparisons={}, findings=())
    assert "&lt;b&gt;" in notebook.result_html(shown)


def test_the_types_exist():
    for module, name in notebook.SHOWN:
        assert isinstance(getattr(import_module(module), name), type)
    assert SpyreTensorLayout.__module__ == "spyre.layout.tensor_layout"


def test_import_registers_where_ipython_runs(monkeypatch: pytest.MonkeyPatch):
    registered = []
    formatter = SimpleNamespace(for_type_by_name=lambda *entry: registered.append(entry[:2]))
    display = SimpleNamespace(formatters={"text/html": formatter})
    shell = SimpleNamespace(display_formatter=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    reload(spyre)
    assert registered == list(notebook.SHOWN)


@pytest.mark.parametrize("notebook_file", sorted((SOFTMAX.parent / "notebooks").glob("*.ipynb")))
def test_the_notebooks_run(notebook_file, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads(notebook_file.read_text())["cells"]
    names: dict[str, object] = {"__name__": "notebook"}
    for cell in cells:
        assert not cell.get("outputs"), "a notebook is kept without outputs"
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
