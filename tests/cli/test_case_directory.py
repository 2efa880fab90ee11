"""`spyre-run` on a case directory of several kernels."""

from __future__ import annotations

import json

from tests.runtime.cases.test_case import write_case


def test_replayed_and_compared(cli, tmp_path):
    ran = cli(write_case(tmp_path))
    assert ran.code == 0
    assert "y: all 4096 elements agree" in ran.out


def test_mismatch(cli, tmp_path):
    ran = cli(write_case(tmp_path, 1.0), "--json")
    assert ran.code == 1
    found = json.loads(ran.out)
    assert [e["sdsc"] for e in found["executes"]] == ["k0/sdsc_0.json", "k1/sdsc_0.json"]
    assert found["comparisons"][0]["worst_index"] == [5, 70]
    assert "execute 1 (abs)" in found["comparisons"][0]["worst_place"]


def test_tolerance_of_the_command_line(cli, tmp_path):
    assert cli(write_case(tmp_path, 1.0), "--atol", "1").code == 0


def test_check_covers_all_kernels(cli, tmp_path):
    write_case(tmp_path)
    (tmp_path / "k1" / "sdsc_0.json").write_text("{}")
    ran = cli(tmp_path, "--check")
    assert ran.code == 2
    assert "k1/sdsc_0.json" in ran.out


def test_explain_names_the_kernel(cli, tmp_path):
    ran = cli(write_case(tmp_path), "--explain")
    assert ran.code == 0
    assert "k0/sdsc_0.json" in ran.out
    assert "k1/sdsc_0.json" in ran.out


def test_unreadable_case(cli, tmp_path):
    (tmp_path / "case.json").write_text("{")
    ran = cli(tmp_path)
    assert ran.code == 2
    assert "SPY371" in ran.err
