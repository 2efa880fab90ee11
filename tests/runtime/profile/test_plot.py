"""The roofline as an SVG file."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

import spyre
from spyre.errors import ProfileError
from spyre.runtime.profile.roofline import FRAME, roofline_chart, roofline_of

SVG = "{http://www.w3.org/2000/svg}"


def test_it_has_programs_roofs_points_and_their_names(tmp_path, softmax):
    file = tmp_path / "roof.svg"
    spyre.profile(softmax).roofline(file)
    root = ElementTree.parse(file).getroot()
    texts = {"".join(text.itertext()) for text in root.iter(f"{SVG}text")}
    assert {"Roofline of softmax", "spyre, calibrated: modelled", "vector units"} <= texts
    assert {"0 max", "1 sub, 4 realdiv", "2 exp", "3 sum"} <= texts
    assert {"bound by memory", "bound by sfu", "bound by lx"} <= texts
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert sum(" of the time, bound by " in title for title in titles) == 5


def test_names_of_executes_stay_inside_and_cover_nothing(softmax):
    """Also where many executes are at the same position."""
    found = roofline_of(spyre.profile(softmax))
    same, alike = (
        replace(
            found,
            points=tuple(replace(found.points[0], label=f"{k} {op.format(k)}") for k in range(9)),
        )
        for op in ("op{}", "op")
    )
    for roofline in (found, same):
        drawn = roofline_chart(roofline)
        named = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="tick over">([^<]+)<', drawn)
        boxes = [(float(x), float(y), float(x) + 6.7 * len(text)) for x, y, text in named]
        assert len(boxes) >= (4 if roofline is found else 1)
        assert all(FRAME.left < left and right < FRAME.end for left, _, right in boxes)
        for k, (left, y, right) in enumerate(boxes):
            for other in boxes[:k]:
                assert abs(y - other[1]) >= 13.9 or left >= other[2] or other[0] >= right
    assert ">0, 1, 2, 3, 4, 5, 6, 7 op<" in roofline_chart(alike)
    # A label of its own could only be beside the point of another execute.
    assert ">0 op0, 1 op1, 2 op2 and 5 more<" in roofline_chart(same)


@pytest.mark.parametrize("name", ["roof.png", "roof.pdf", "roof"])
def test_other_formats_are_refused(name, tmp_path, softmax):
    with pytest.raises(ProfileError, match="SPY782") as raised:
        spyre.profile(softmax).roofline(tmp_path / name)
    assert ".svg" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_points_lie_below_their_roofs(softmax, matmul):
    """No execute exceeds the machine's peaks in the ideal model."""
    for result in (softmax, matmul):
        found = roofline_of(spyre.profile(result, model="ideal"))
        flat = {"sfu": "vector units", "pt": "pt arrays, SEN169_FP16"}
        for point in found.points:
            if point.intensity is not None:
                assert point.rate <= found.roofs[0].gbps * point.intensity * (1 + 1e-9)
            roof = next(r for r in found.roofs if r.name == flat[point.unit])
            assert point.rate <= roof.rate * (1 + 1e-9)
            assert found.y[0] <= point.rate <= found.y[1]
