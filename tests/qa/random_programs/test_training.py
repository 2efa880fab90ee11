"""Random training steps: the same for a seed, right where nothing is wrong, small where something
is.
"""

from __future__ import annotations

import pytest
import torch

from qa.random_programs import training
from qa.random_programs.programs import FLOAT, HALF
from qa.random_programs.training import Step, first_failure, random_step, run, shrunk

LAYERS = ("nn.Linear(5, 33)", "nn.GELU()", "Residual(nn.LayerNorm([33]))", "nn.Linear(33, 3)")
RIGHT = Step(7, (4, 5), FLOAT, LAYERS, "F.cross_entropy(y, like(torch.tensor([0, 2, 1, 2])))", (1,))


def test_a_seed_is_one_step():
    steps = [str(random_step(seed)) for seed in range(5)]
    assert steps == [str(random_step(seed)) for seed in range(5)]
    assert len(set(steps)) == 5


def test_steps_use_many_layers_and_losses():
    texts = "".join(str(random_step(seed)) for seed in range(45))
    for word in ("Conv", "BatchNorm", "LSTM", "Checkpointed(", "hooks", "-100", "torch.zeros("):
        assert word in texts, word


def test_a_right_step_has_no_failure():
    assert first_failure(RIGHT) is None
    assert {"loss", "gradient of x", "gradient of 3.bias"} <= run(RIGHT, "cpu", FLOAT).keys()


@pytest.mark.parametrize("wrong", ["gradient of 0.weight", "result"])
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, wrong: str):
    def damaged(
        step: Step, device: str, dtype: torch.dtype, noise: int | None = None
    ) -> training.Values:
        values = run(step, device, dtype, noise)
        if device == "spyre":
            value = values[wrong]
            assert value is not None
            value[0, 0] += 0.1
        return values

    monkeypatch.setattr(training, "run", damaged)
    failure = first_failure(RIGHT)
    assert failure is not None
    assert failure.kind == "different"
    assert failure.text.startswith(f"{wrong}: 1 of ")


@pytest.mark.parametrize(
    ("layer", "kind"), [("nn.ReLU()", "unstable"), ("nn.Linear(2, 2)", "different")]
)
def test_a_jump_of_the_reference_is_no_defect(
    monkeypatch: pytest.MonkeyPatch, layer: str, kind: str
):
    def near_a_kink(
        step: Step, device: str, dtype: torch.dtype, noise: int | None = None
    ) -> training.Values:
        values = run(step, device, dtype, noise)
        gradient = values["gradient of x"]
        if device == "spyre" and gradient is not None:
            gradient[0, 0] += 1
        return values

    monkeypatch.setattr(training, "run", near_a_kink)
    monkeypatch.setattr(Step, "input", lambda step: torch.tensor([[0.0, 1.0]]))
    failure = first_failure(Step(1, (1, 2), FLOAT, (layer,), "y.sum()"))
    assert failure is not None
    assert failure.kind == kind


ENCODER = ("nn.TransformerEncoderLayer(2, 1, 2, 0.0, batch_first=True)",)
NORMS_OF_TWO = Step(
    1610968, (8, 32, 2), HALF, ENCODER, "F.mse_loss(y, like(torch.randn([8, 32, 2])))"
)


def test_terms_that_cancel_depend_on_the_rounding_of_ties():
    """The norm of two elements is -1 and 1: gradients that pass it are made of roundings."""
    moved = training.rounding_of(NORMS_OF_TWO)
    assert moved["gradient of 0.norm1.weight"].max() > 0
    assert training.rounding_of(RIGHT) == {}


@pytest.mark.parametrize(("moved", "kind"), [(0.0, "different"), (0.5, "unstable")])
def test_what_either_rounding_gives_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, moved: float, kind: str
):
    def damaged(
        step: Step, device: str, dtype: torch.dtype, noise: int | None = None
    ) -> training.Values:
        values = run(step, device, dtype, noise)
        if device == "spyre":
            values["loss"] = torch.tensor(100.0, dtype=dtype)
        return values

    monkeypatch.setattr(training, "run", damaged)
    monkeypatch.setattr(training, "rounding_of", lambda step: {"loss": torch.tensor(moved * 200)})
    failure = first_failure(Step(1, (2, 3), HALF, ("nn.ReLU()",), "y.sum()"))
    assert failure is not None
    assert failure.kind == kind


def test_nan_where_the_cpu_has_numbers_is_wrong(monkeypatch: pytest.MonkeyPatch):
    def damaged(
        step: Step, device: str, dtype: torch.dtype, noise: int | None = None
    ) -> training.Values:
        values = run(step, device, dtype, noise)
        if device == "spyre":
            values["loss"] = torch.tensor(float("nan"), dtype=dtype)
        return values

    step = Step(1, (2, 3), HALF, ("nn.ReLU()",), "y.sum()")
    monkeypatch.setattr(training, "run", damaged)
    failure = first_failure(step)
    assert failure is not None
    assert "nan, expected" in failure.text


def test_shrinking_keeps_what_fails(monkeypatch: pytest.MonkeyPatch):
    def fails_with_gelu(step: Step) -> training.Failure | None:
        guilty = "nn.GELU()" in step.layers
        return training.Failure("training", "different", "loss: wrong") if guilty else None

    monkeypatch.setattr(training, "first_failure", fails_with_gelu)
    step, _ = shrunk(RIGHT, training.Failure("training", "different", "loss: wrong"))
    assert "nn.GELU()" in step.layers
    assert len(step.layers) < len(RIGHT.layers)
    assert not step.hooks
