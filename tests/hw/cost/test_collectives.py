"""Modelled collectives against the formulas' worked examples, and constants that say how known."""

from __future__ import annotations

import pytest

from spyre.hw.cost import bus_gbps, collective_time, default_machine, fastest_time

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("name", "size_bytes", "expected_us"),
    [
        # granite-3.3-8b (hidden 4096), 4 ranks: decode of batch 32, prefill of 2048 tokens
        ("all_reduce", 256 * KIB, 6 * (50 + 2.185) + 5.08),
        ("all_gather_sum", 256 * KIB, 3 * (50 + 8.738) + 20.34),
        ("all_reduce", 16 * MIB, 6 * (50 + 139.8) + 325.4),
        ("all_gather", 16 * MIB, 3 * (50 + 139.8)),
        ("reduce_scatter", 16 * MIB, 3 * (50 + 139.8) + 325.4),
        ("broadcast", 16 * MIB, 3 * (50 + 559.2)),
        ("reduce", 16 * MIB, 6 * (50 + 139.8) + 325.4),
        ("gather", 16 * MIB, 3 * (50 + 139.8)),
        ("send", 16 * MIB, 50 + 559.2),
        ("barrier", 0, 150),
    ],
)
def test_four_ranks(name, size_bytes, expected_us):
    time = collective_time(name, size_bytes, 4, default_machine())
    assert time.total_ns / 1e3 == pytest.approx(expected_us, rel=1e-3)


def test_one_rank_takes_no_time():
    assert collective_time("all_reduce", MIB, 1, default_machine()).total_ns == 0


def test_phases_are_exchanges_with_the_adds_behind_them():
    time = collective_time("all_reduce", 16 * MIB, 4, default_machine())
    *adding, (rest_ns, nothing_ns) = time.phases
    assert len(adding) == 3
    assert nothing_ns == 0
    assert rest_ns == pytest.approx(3 * adding[0][0])
    assert sum(map(sum, time.phases)) == pytest.approx(time.total_ns)


def test_a_small_all_reduce_is_one_exchange():
    machine = default_machine()
    for size_bytes, name in ((KIB, "all_gather_sum"), (16 * MIB, "all_reduce")):
        fastest = fastest_time("all_reduce", size_bytes, 4, machine)
        assert fastest == collective_time(name, size_bytes, 4, machine)


def test_bus_bandwidth_counts_as_nccl_tests_do():
    # all-reduce: 2 (W - 1) / W bytes over the bus per byte
    time = collective_time("all_reduce", MIB, 4, default_machine())
    assert time.bus_gbps(MIB) == pytest.approx(MIB * 1.5 / time.total_ns)
    assert bus_gbps(0, 0, 1) == 0


def test_no_constant_of_links_is_measured():
    constants = default_machine().constants
    kinds = {constants[f"hardware.card_{key}"].kind for key in ("link_gbps", "step_us", "add_gbps")}
    assert kinds == {"derived", "guessed"}
