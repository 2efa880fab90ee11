"""The roofline as a picture, and what is said without matplotlib."""

from __future__ import annotations

import sys

import pytest

import spyre
from spyre.errors import ProfileError
from spyre.runtime.profile.roofline import roofline_of


def test_a_picture(tmp_path, softmax):
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    file = tmp_path / "roof.png"
    spyre.profile(softmax).roofline(file)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_it_names_its_programs_and_its_legend_covers_nothing(tmp_path, softmax, monkeypatch):
    figures = pytest.importorskip("matplotlib.figure", reason="the extra plot is not installed")
    drawn = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    spyre.profile(softmax).roofline(tmp_path / "roof.png")
    (axes,), (legend,) = drawn[0].axes, drawn[0].legends
    assert axes.get_title().startswith("softmax\n")
    drawn[0].canvas.draw()
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_without_matplotlib(tmp_path, softmax, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ProfileError, match="SPY780") as raised:
        spyre.profile(softmax).roofline(tmp_path / "roof.png")
    assert "spyre[plot]" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_of_picture(tmp_path, softmax):
    with pytest.raises(ProfileError, match="SPY782"):
        spyre.profile(softmax).roofline(tmp_path / "roof.gif")


def test_points_lie_below_their_roofs(softmax, matmul):
    """By the ideal model, no execute is beyond the machine's peaks."""
    for result in (softmax, matmul):
        found = roofline_of(spyre.profile(result, model="ideal"))
        flat = {"sfu": "vector units", "pt": "pt arrays, SEN169_FP16"}
        for point in found.points:
            if point.intensity is not None:
                assert point.rate <= found.roofs[0].gbps * point.intensity * (1 + 1e-9)
            roof = next(r for r in found.roofs if r.name == flat[point.unit])
            assert point.rate <= roof.rate * (1 + 1e-9)
            assert found.y[0] <= point.rate <= found.y[1]
