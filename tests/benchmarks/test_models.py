"""Small models: their results, and that every form of one is measured."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from benchmarks import models
from benchmarks.models import Attention, LlamaBlock, Model, models as all_models, perceptron
from spyre.torch_backend.inductor.design_point import forget_compiled


def test_attention_is_torch_s():
    torch.manual_seed(0)
    ours = Attention(64, 16, 4, bias=True)
    theirs = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.data = torch.cat([part.weight for part in parts])
    theirs.in_proj_bias.data = torch.cat([part.bias for part in parts])
    theirs.out_proj.load_state_dict(ours.output.state_dict())
    x = torch.rand(2, 8, 64)
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0], rtol=1e-4, atol=1e-5)


def test_a_llama_block_does_not_look_ahead_and_knows_positions():
    torch.manual_seed(0)
    block, x = LlamaBlock(128, 8), torch.rand(1, 8, 128)
    other = x.clone()
    other[:, 5] += 1
    found, changed = block(x), block(other)
    torch.testing.assert_close(found[:, :5], changed[:, :5])
    assert not torch.allclose(found[:, 6:], changed[:, 6:])
    repeated = x[:, :1].expand(1, 8, 128) + torch.eye(8, 128)[None] * 0.1
    swapped = repeated[:, [1, 0, *range(2, 8)]]
    assert not torch.allclose(block(repeated)[:, 7], block(swapped)[:, 7], atol=1e-6)


@pytest.mark.parametrize("model", [*all_models(True), *all_models(False)], ids=lambda m: m.name)
def test_models_take_their_sizes(model):
    with torch.no_grad():
        found = model.make().eval()(torch.rand(model.sizes))
    assert found.isfinite().all()


def test_every_form_is_measured_and_right(monkeypatch):
    small = Model("p", lambda: perceptron(64), (64, 64))
    monkeypatch.setattr(models, "models", lambda quick: [small])
    monkeypatch.setattr(models, "QUICK_ROUNDS", 2)
    rows = {row.name: row for row in models.measure(quick=True)}
    for side in (models.EAGER, models.COMPILED, models.TILED):
        assert len(rows[f"p: {side}"].values) == 2
        assert rows[f"p: {side}: simulated"].median > 0
        assert rows[f"p: {side}: HBM"].median > 3 * 64 * 64
        assert not rows[f"p: {side}: worst error"].missed
    assert rows["p: eager: launches"].median == 3
    assert rows["p: compiled: launches"].median == 1
    assert not rows[f"p: {models.CPU}"].compared
    forget_compiled()
