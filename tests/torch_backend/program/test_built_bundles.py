"""Bundles built by eager operations and compiled functions equal those read from files."""

from __future__ import annotations

import pytest
import torch

from tests.mlir.round_trip import checked_bundles

ROWS, COLUMNS = 37, 150
"""Sizes that no other test has, so that nothing was built before."""


def test_eager_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    host = torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) % 7
    with checked_bundles(monkeypatch) as bundles:
        x, n = host.half().to("spyre"), host.int().to("spyre")
        results = [
            x + x,
            x @ x.t(),
            x.softmax(1),
            x.sum(0),
            x.t().contiguous(),
            torch.cat([x, x], 1),
            x[:, 3:70].clone(),
            x.float().exp(),
            x.topk(5, 1).values,
            n * n,
            x > 2,
        ]
    assert all(result.device.type == "spyre" for result in results)
    assert len(bundles) >= len(results)


def test_a_compiled_function(monkeypatch: pytest.MonkeyPatch) -> None:
    host = torch.ones(ROWS, COLUMNS).half()
    with checked_bundles(monkeypatch) as bundles:
        function = torch.compile(lambda a, b: torch.softmax(a + b, 1) @ b.t())
        function(host.to("spyre"), host.to("spyre")).cpu()
    assert bundles
