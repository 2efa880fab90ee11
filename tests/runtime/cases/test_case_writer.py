"""Written cases read back equal; nothing but a dump is ever replaced."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from qa.conformance.cases import find_cases
from spyre.errors import LaunchError
from spyre.hw.device.device import Device
from spyre.runtime.cases import Case, check_dump_directory, read_case, write_case, write_dump
from spyre.runtime.run.session import run
from tests.examples import sample

from .test_case import write_case as make_case


def assert_equal(a: Case, b: Case) -> None:
    assert a.spec == b.spec
    for left, right in ((a.values, b.values), (a.images, b.images)):
        assert list(left) == list(right)
        for key, array in left.items():
            assert array.dtype == right[key].dtype
            assert array.tobytes() == right[key].tobytes()
    for launch in a.spec.launches:
        for path in (a.directory / launch.bundle).glob("*.mlir"):
            assert path.read_bytes() == (b.directory / launch.bundle / path.name).read_bytes()


def test_round_trip(tmp_path):
    case = read_case(make_case(tmp_path / "a"))
    write_case(case, tmp_path / "b")
    again = read_case(tmp_path / "b")
    assert_equal(case, again)
    assert run(again, device=Device()).ok
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.shared
def test_real_cases_round_trip(shared_dir: Path, tmp_path: Path):
    """Every third, and all in the long form."""
    for directory in sample(find_cases(shared_dir / "bundles"), 3):
        case = read_case(directory)
        write_case(case, tmp_path / "copy")
        assert_equal(case, read_case(tmp_path / "copy"))


def test_device_images_are_written(tmp_path):
    case = read_case(make_case(tmp_path / "a"))
    buffers = dict(case.spec.buffers)
    buffers["t"] = msgspec.structs.replace(buffers["t"], device_image="t")
    spec = msgspec.structs.replace(case.spec, buffers=buffers)
    image = np.arange(256, dtype=np.uint8)
    write_case(Case(case.directory, spec, case.values, {"t": image}), tmp_path / "b")
    assert np.array_equal(read_case(tmp_path / "b").image("t"), image)


def test_a_bundle_outside_of_the_case_moves_in(tmp_path, monkeypatch):
    monkeypatch.setenv("SPYRE_ALLOW_OUTSIDE", "1")
    case = read_case(make_case(tmp_path / "a"))
    outside = [msgspec.structs.replace(x, bundle=f"../a/{x.bundle}") for x in case.spec.launches]
    spec = msgspec.structs.replace(case.spec, launches=tuple(outside))
    write_case(Case(case.directory, spec, case.values, {}), tmp_path / "b")
    copy = read_case(tmp_path / "b")
    assert [launch.bundle for launch in copy.spec.launches] == ["kernel_0", "kernel_1"]
    assert run(copy, device=Device()).ok


def test_bundles_from_outside_and_inside_have_places_of_their_own(tmp_path, monkeypatch):
    """The first one moves in, where the second one's name would be the next to choose."""
    monkeypatch.setenv("SPYRE_ALLOW_OUTSIDE", "1")
    case = read_case(make_case(tmp_path / "a"))
    (tmp_path / "a" / "k1").rename(tmp_path / "a" / "kernel_0")
    places = ("../a/k0", "kernel_0")
    launches = zip(case.spec.launches, places, strict=True)
    moved = tuple(msgspec.structs.replace(launch, bundle=place) for launch, place in launches)
    spec = msgspec.structs.replace(case.spec, launches=moved)
    write_case(Case(case.directory, spec, case.values, {}), tmp_path / "b")
    assert run(read_case(tmp_path / "b"), device=Device()).ok


def test_only_a_dump_is_replaced(tmp_path):
    case = read_case(make_case(tmp_path / "a"))
    target = tmp_path / "dump"
    write_dump(case, target, {"exit_code": 0})
    write_dump(case, target, {"exit_code": 1}, {"note.txt": b"x"})
    assert json.loads((target / "findings.json").read_text()) == {"spyre_dump": 1, "exit_code": 1}
    assert (target / "note.txt").read_bytes() == b"x"
    check_dump_directory(target)
    for other in (tmp_path / "a", tmp_path):
        with pytest.raises(LaunchError, match="SPY380"):
            write_dump(case, other, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "dump"]


def test_a_link_to_a_dump_stays_a_link(tmp_path):
    case = read_case(make_case(tmp_path / "a"))
    write_dump(case, tmp_path / "dump", {"exit_code": 0})
    (tmp_path / "link").symlink_to(tmp_path / "dump")
    write_dump(case, tmp_path / "link", {"exit_code": 1})
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "dump" / "findings.json").read_text())["exit_code"] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "dump", "link"]


def test_a_dump_into_the_working_directory(tmp_path, monkeypatch):
    case = read_case(make_case(tmp_path / "a"))
    write_dump(case, tmp_path / "dump", {"exit_code": 0})
    monkeypatch.chdir(tmp_path / "dump")
    write_dump(case, Path(), {"exit_code": 1})
    assert json.loads((tmp_path / "dump" / "findings.json").read_text())["exit_code"] == 1


def test_a_directory_that_cannot_be_written(tmp_path):
    case = read_case(make_case(tmp_path / "a"))
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match=r"SPY381.*cannot write"):
        write_dump(case, tmp_path / "file" / "dump", {})


def test_an_option_of_another_version_is_refused(tmp_path):
    from spyre.cli.dump import with_recorded
    from spyre.cli.options import ExecuteOptions

    with pytest.raises(LaunchError, match=r"case\.json at \$\.run.*\n.*found: tomorrow"):
        with_recorded(ExecuteOptions("x"), {"tomorrow": 1}, "case.json")
    with pytest.raises(LaunchError, match="SPY371"):
        with_recorded(ExecuteOptions("x"), {"numerics": 7}, "case.json")
