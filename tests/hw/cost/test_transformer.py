"""Whole models: shapes from configurations, and the parts of their times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spyre.errors import EstimateError
from spyre.hw.cost import default_machine, estimate_model
from spyre.hw.cost.estimate import decoder_shape, kernels_of

GRANITE = {
    "model_type": "granite",
    "hidden_size": 4096,
    "intermediate_size": 12800,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 49159,
}


def configuration(directory: Path, **changes: object) -> str:
    config = {**GRANITE, **changes}
    path = directory / "config.json"
    path.write_text(json.dumps({name: v for name, v in config.items() if v is not None}))
    return str(path)


def multiply_adds(model: str, rows: int) -> float:
    """Return the multiply-adds of the linears of one pass, without the head."""
    kernels = kernels_of(decoder_shape(model), 1, rows, rows)
    sizes = [
        (times, [int(word[1:]) for word in shapes.split()])
        for part, times, _, shapes in kernels
        if part == "linears" and times > 1
    ]
    return sum(times * m * n * k for times, (m, n, k) in sizes)


def test_a_file_a_directory_and_a_name(tmp_path: Path):
    path = configuration(tmp_path)
    found = [estimate_model(m) for m in (path, str(tmp_path), "Granite-3.3-8B")]
    assert len({each.prefill.us for each in found}) == 1
    assert len({each.token.us for each in found}) == 1


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("granite-3.3-8b", 7.97e9), ("llama-3.1-8b", 6.98e9), ("mixtral-8x7b", 12.6e9)],
)
def test_every_weight_is_used_once(name: str, parameters: float):
    """Weights of all layers' linears; of experts those of two."""
    assert multiply_adds(name, 1) == pytest.approx(parameters, rel=0.01)
    assert multiply_adds(name, 512) == pytest.approx(512 * parameters, rel=0.01)


def test_linears_of_granite_against_the_sums_measured_on_a_card():
    """40 layers, a production compiler: 118.6 ms for one row, 163.9 for 512."""
    found = estimate_model("granite-3.3-8b")
    assert found.token.parts_us["linears"] == pytest.approx(118.6e3, rel=0.1)
    assert found.prefill.parts_us["linears"] == pytest.approx(163.9e3, rel=0.1)
    narrow = estimate_model("granite-3.3-8b", dtype="fp8")
    assert narrow.token.parts_us["linears"] == pytest.approx(60.9e3, rel=0.1)


def test_parts_add_up_and_follow_the_sizes():
    one = estimate_model("granite-3.3-8b", prompt=128)
    assert sum(one.prefill.parts_us.values()) == one.prefill.us
    assert one.tokens_per_second == pytest.approx(1e6 / one.token.us)
    assert 0.02 < one.token.spread < 0.3
    longer = estimate_model("granite-3.3-8b", prompt=1024)
    assert longer.prefill.parts_us["linears"] > 2.5 * one.prefill.parts_us["linears"]
    assert longer.prefill.parts_us["attention"] > 16 * one.prefill.parts_us["attention"]
    assert longer.token.parts_us["linears"] == pytest.approx(one.token.parts_us["linears"])
    eight = estimate_model("granite-3.3-8b", prompt=128, batch=8)
    assert eight.tokens_per_second > 4 * one.tokens_per_second


def test_cards_share_linears_and_exchange_sums():
    one, four = (estimate_model("granite-3.3-8b", cards=n) for n in (1, 4))
    assert "collectives" not in one.token.parts_us
    assert four.token.parts_us["collectives"] > 0
    ratio = one.token.parts_us["linears"] / four.token.parts_us["linears"]
    assert 3 < ratio < 4.5


def test_names_of_other_families(tmp_path: Path):
    """Experts of Qwen3-MoE have their own width; GPT-2 has other names, and wide MLPs."""
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768}
    moe = decoder_shape(configuration(tmp_path, model_type="qwen3_moe", **experts))
    assert (moe.inner, moe.num_local_experts) == (768, 8)
    gpt2 = decoder_shape("gpt2")
    assert (gpt2.hidden_size, gpt2.inner, gpt2.num_key_value_heads) == (768, 3072, 12)


def test_another_machine():
    half = default_machine().with_values({"calibration.product_gbps": 78.0})
    assert estimate_model("gpt2", machine=half).token.us > 1.2 * estimate_model("gpt2").token.us


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "whisper"}, "model_type: granite or llama"),
        ({"model_type": None}, "the file: a key model_type"),
        ({"vocab_size": None}, "the file: a key vocab_size"),
        ({"hidden_size": "wide"}, "hidden_size: int"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: int >= 1"),
    ],
)
def test_configurations_that_lack_something(tmp_path: Path, changes, expected):
    with pytest.raises(EstimateError, match="SPY768") as caught:
        estimate_model(configuration(tmp_path, **changes))
    assert caught.value.finding.expected.startswith(expected)


@pytest.mark.parametrize("content", ["{", "[]", "7"])
def test_files_that_are_no_configuration(tmp_path: Path, content: str):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(EstimateError, match="SPY768"):
        estimate_model(str(path))


@pytest.mark.parametrize("numbers", [{"cards": 3}, {"batch": 0}, {"prompt": 0}])
def test_numbers_that_cannot_be(numbers: dict[str, int]):
    with pytest.raises(EstimateError, match="SPY768"):
        estimate_model("granite-3.3-8b", **numbers)  # type: ignore[arg-type]
