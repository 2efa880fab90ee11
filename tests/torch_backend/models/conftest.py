"""The device the models run on, and what it cannot do yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from spyre.torch_backend import autoload

pytest.register_assert_rewrite("tests.torch_backend.models.comparison")

AWAITED = {
    "test_examples.py::test_vision": "convolution",
    "test_forward.py::test_float16_logits[vit": "convolution",
    "test_forward.py::test_float32_logits[vit": "convolution",
    "test_forward.py::test_all_hidden_states_and_attentions": "convolution",
    "test_modules.py::test_memory_of_a_forward_pass_is_given_back[vit]": "convolution",
    "test_torch_modules.py::test_encoder_with_padding": "nested tensors avoided",
    "test_torch_modules.py::test_recurrent[LSTM]": "fused cells",
    "test_torch_modules.py::test_recurrent[GRU]": "fused cells",
    "test_torch_modules.py::test_convolutional": "convolution",
    "test_torch_modules.py::test_batch_norm_keeps_statistics": "unannotated writes",
    "test_training.py::test_autocast[transformer]": "a matmul over merged dims",
    "test_training.py::test_checkpointing_repeats_random_numbers": "random state of the card",
}
"""Beginnings of test ids, and what the device lacks for them. A test that passes fails here: its
line has to go."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = f"{item.path.name}::{item.name}"
        lacking = [what for test, what in AWAITED.items() if name.startswith(test)]
        if lacking and item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xfail(reason=f"awaits {lacking[0]}", strict=True))


@pytest.fixture(scope="session", autouse=True)
def device() -> str:
    """Name of the device under test, registered with PyTorch, installed or not."""
    autoload()
    return "spyre"
