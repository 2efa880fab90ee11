"""Right operators have no finding; samples have rows of as many sticks as asked."""

from __future__ import annotations

import pytest
import torch

from qa.opinfo.samples import load_database
from qa.sanitize_operators.widened import LARGEST, widened
from tests.torch_backend.processes import run


@pytest.mark.parametrize(("dtype", "sticks", "width"), [("float16", 3, 192), ("float32", 5, 160)])
@pytest.mark.parametrize("name", ["add", "mm", "softmax", "gather", "nn.functional.layer_norm"])
def test_samples_are_widened(name, dtype, sticks, width):
    samples = list(widened(load_database()[name], dtype, sticks, 2))
    assert samples
    for sample in samples:
        tensors = [x for x in (*sample.args, *sample.kwargs.values()) if torch.is_tensor(x)]
        assert any(tensor.shape[-1] == width for tensor in tensors if tensor.dim())
        assert all(tensor.numel() <= LARGEST for tensor in tensors)


def test_a_finding_is_printed_and_counted():
    code = """
        import torch
        from qa.sanitize_operators.__main__ import Job, Tally, _findings, _parse, run
        from qa.opinfo.samples import load_database
        from qa.opinfo.target import Target

        options = _parse(["--ops", "^(add|softmax)$", "--dtype", "float16", "--widths", "3"])
        tally = run(options, print)
        print(len(tally.findings), sorted(tally.operators), sum(tally.ran.values()) >= 6)
        op = load_database()["add"]
        op.op = lambda x, *rest, **named: torch.empty(2, 192, device=x.device).half() + 1
        job, tally = Job("add", "float16", "eager", 3), Tally()
        found = list(_findings(op, job, Target("spyre"), 1, tally))
        print(len(found) > 0, all("uninitialised" in text or "SPY7" in text for text in found))
    """
    shown = run(code, SPYRE_SANITIZE="1").splitlines()
    assert shown == ["0 ['add', 'softmax'] True", "True True"]
