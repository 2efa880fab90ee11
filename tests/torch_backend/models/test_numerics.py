"""The part of a model's error that DL16 causes: ``SPYRE_NUMERICS=ieee`` leaves binary16's."""

from __future__ import annotations

import pytest
import torch

from qa.models import configurations
from tests.torch_backend.models.comparison import BINARY16, UNITS, mean_error
from tests.torch_backend.processes import run

PROGRAM = """
warnings.simplefilter("ignore")
import gc
from tests.torch_backend.models.test_numerics import llama_error
errors = llama_error()
gc.collect()
print(*errors, torch.spyre.memory_allocated())
"""


@torch.no_grad()
def llama_error() -> tuple[float, float]:
    """Worst and mean error of a Llama's float16 logits on the device, both relative."""
    inputs = configurations.token_inputs()
    expected = configurations.llama()(**inputs).logits
    model = configurations.llama().to("spyre", torch.float16)
    found = model(input_ids=inputs["input_ids"].to("spyre")).logits.cpu()
    worst = (found.float() - expected).abs().max() / expected.abs().max()
    return worst.item(), mean_error(found, expected)


@pytest.fixture(scope="module")
def in_ieee() -> tuple[float, ...]:
    """Both errors of a process in IEEE mode, and bytes on the card once its model is gone."""
    return tuple(map(float, run(PROGRAM, SPYRE_NUMERICS="ieee").split()))


def test_ieee_leaves_the_error_of_binary16(in_ieee: tuple[float, ...], device: str):
    worst, mean, _ = in_ieee
    assert worst <= UNITS * BINARY16
    assert mean < 0.6 * llama_error()[1]


def test_memory_goes_back_to_zero(in_ieee: tuple[float, ...]):
    assert in_ieee[2] == 0
