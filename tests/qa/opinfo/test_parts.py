"""Trees, samples, structure, selection, storage: the parts a trial is made of."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch

from qa.opinfo.deliver import DELIVERED, ON_CORES
from qa.opinfo.fakes import OPS
from qa.opinfo.rules import EMPTY, RANDOM, RANDOM_WITH, RANGES, is_random
from qa.opinfo.samples import Sample, load_database, sample_inputs
from qa.opinfo.selection import SELECTORS, selects_same
from qa.opinfo.stored import StoredResults, as_stored
from qa.opinfo.structure import structure_difference
from qa.opinfo.target import Target
from qa.opinfo.tolerances import OVERRIDES, tolerance_of
from qa.opinfo.trees import leaves, mapped
from qa.opinfo.ways import selected

Pair = namedtuple("Pair", "left right")


def test_mapped_keeps_every_kind_of_container() -> None:
    tree = {"a": [1, (2, Pair(3, 4))], "b": slice(5, None, 6)}
    assert mapped(tree, lambda leaf: leaf and leaf + 1) == {
        "a": [2, (3, Pair(4, 5))],
        "b": slice(6, None, 7),
    }
    assert leaves(tree) == [1, 2, 3, 4, 5, None, 6]
    assert leaves(torch.Size([2, 3])) == [2, 3]


def test_samples_are_the_same_every_time() -> None:
    once, again = (sample_inputs(OPS[0], "float16") for _ in range(2))
    assert len(once) == 2
    assert all(torch.equal(a.input, b.input) for a, b in zip(once, again, strict=True))
    assert Sample.of(once[1]).summary() == "float16[2, 5]"
    assert len(sample_inputs(OPS[0], "float16", 1)) == 1


def test_every_name_in_a_table_is_an_operator_of_the_database() -> None:
    database = load_database()
    named = [*DELIVERED, *OVERRIDES, *EMPTY, *RANDOM, *RANDOM_WITH, *RANGES, *SELECTORS]
    optimizers = load_database("qa.opinfo.modules:OPTIMIZERS")
    assert sorted(set(named) - set(database) - set(optimizers)) == []
    assert len(DELIVERED) == sum(map(len, ON_CORES.values()))


def test_selection_is_by_dtype_and_pattern() -> None:
    database = load_database()
    assert "linalg.inv" in selected(database, "float32", "forward", None)
    assert "linalg.inv" not in selected(database, "float16", "forward", None)
    assert sorted(selected(database, "float16", "forward", "^(mm|bmm)$")) == ["bmm", "mm"]


@pytest.mark.parametrize(
    "like",
    [
        torch.randn(4, 6),
        torch.randn(4, 6).t(),
        torch.randn(4, 6)[:, ::2],
        torch.randn(6)[2:4],
        torch.randn(3, 1).expand(3, 5),
        torch.tensor(2.0),
        torch.empty(0, 3),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
)
def test_a_copy_has_the_values_and_strides(like: torch.Tensor) -> None:
    target = Target("cpu")
    for copy in (target.put(like), target.held(like)):
        assert torch.equal(copy, like)
        assert copy.stride() == like.stride()
        assert copy.untyped_storage().data_ptr() != like.untyped_storage().data_ptr() or (
            like.numel() == 0
        )


def test_device_arguments_are_renamed() -> None:
    arguments = Target("meta").arguments(({"device": "cpu"}, torch.device("cpu"), "cpus"))
    assert arguments == ({"device": torch.device("meta")}, torch.device("meta"), "cpus")


def test_a_call_that_names_no_device_runs_on_the_default_one() -> None:
    assert Target("meta").run(torch.arange, (3,), {}).device.type == "meta"


def test_structure() -> None:
    one = torch.zeros(2, 3)
    same = structure_difference([one, 1], [one, 2], "cpu", strides=True)
    assert same == ""
    wrong = {
        "shape": one.t().contiguous(),
        "dtype": one.half(),
        "strides": torch.zeros(3, 2).t(),
        "device": one.to("meta"),
    }
    for name, other in wrong.items():
        assert f"result 0: {name}" in structure_difference(other, one, "cpu", strides=True)
    assert structure_difference(wrong["strides"], one, "cpu", strides=False) == ""
    assert "1 results instead of 2" in structure_difference([one], [one, one], "cpu", strides=False)
    assert "instead of a tensor" in structure_difference(1.0, one, "cpu", strides=False)
    assert "instead of" in structure_difference(1.0, True, "cpu", strides=False)


def test_indices_are_right_when_they_select_equal_values() -> None:
    values = torch.tensor([[3.0, 1.0, 3.0], [2.0, 2.0, 5.0]])
    largest = torch.tensor([0, 2])
    assert selects_same("argmax", (values, 1), {}, torch.tensor([2, 2]), largest)
    assert not selects_same("argmax", (values, 1), {}, torch.tensor([1, 2]), largest)
    assert not selects_same("argmax", (values, 1), {}, torch.tensor([3, 2]), largest)
    assert selects_same("argmax", (values,), {}, torch.tensor(5), torch.tensor(5))
    assert not selects_same("cumsum", (values, 1), {}, largest, largest)


def test_sorted_positions_are_distinct() -> None:
    values = torch.tensor([3.0, 1.0, 3.0])
    order = torch.tensor([0, 2, 1])
    swapped, twice = torch.tensor([2, 0, 1]), torch.tensor([0, 0, 1])
    kwargs = {"descending": True}
    assert selects_same("sort", (values,), kwargs, swapped, order)
    assert not selects_same("sort", (values,), kwargs, twice, order)
    assert not selects_same("sort", (values,), {**kwargs, "stable": True}, swapped, order)


def test_stored_values_are_those_of_the_formats() -> None:
    half = torch.tensor([1 + 2**-10, 1 + 2**-9, 65504.0, float("nan")], dtype=torch.float16)
    assert as_stored(half).tolist() == [1 + 2**-9, 1 + 2**-9, float("inf"), float("inf")]
    assert as_stored(torch.tensor([2**32 + 7])).tolist() == [7]
    assert as_stored(torch.tensor(0.1)).item() == torch.tensor(0.1).item()
    assert as_stored(torch.tensor(1.5, dtype=torch.bfloat16)).shape == ()


def test_stored_results_round_every_step() -> None:
    one, step = torch.ones(4, dtype=torch.float16), 2.0**-10
    plain = (one + step) - 1
    with StoredResults():
        stored = (one + step) - 1
    assert plain.tolist() == [step] * 4
    assert stored.tolist() == [2 * step] * 4


def test_an_expanded_result_is_stored_once() -> None:
    row = torch.full((1, 3), 1 + 2.0**-10, dtype=torch.float16)
    with StoredResults():
        wide = row.expand(4, 3)
    assert wide.tolist() == [[1 + 2.0**-9] * 3] * 4


def test_zeros_without_storage_stay_as_they_are() -> None:
    with StoredResults():
        zeros = torch._efficientzerotensor(3, dtype=torch.float16)
    assert zeros._is_zerotensor()


def test_random_samples_by_operator_or_arguments() -> None:
    assert is_random("randn", "")
    attention = "nn.functional.scaled_dot_product_attention"
    assert is_random(attention, "float32[2, 3], dropout_p=0.5")
    assert not is_random(attention, "float32[2, 3], dropout_p=0.0")
    assert not is_random("add", "dropout_p=0.5")


def test_the_coarser_dtype_and_the_override_count() -> None:
    half, single = torch.float16, torch.float32
    assert tolerance_of("exp", single, half) == tolerance_of("exp", half, single)
    assert tolerance_of("exp", single, torch.bool) == tolerance_of("exp", single, single)
    assert tolerance_of("mm", half, half).condition > 0
    moved = tolerance_of("cat", half, half)
    assert (moved.rtol, moved.atol) == (0.0, 0.0)


def test_a_summary_is_one_short_line() -> None:
    sample = Sample((torch.zeros(2), "x" * 500), {"dim": 1})
    assert len(sample.summary()) == 200
    assert "dim=1" in sample.described()
