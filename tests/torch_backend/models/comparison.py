"""Bounds of a model's errors on the device, relative to float32 on the CPU.

The device holds float16 as DL16, which has 9 fraction bits, so a rounding moves a number by less
than ``2**-9`` of it, and a model rounds after every operation. The bounds below are in that unit,
relative to the largest logit and, for the mean error, to the root mean square of all.

The bound of six: rounding every float16 result of a CPU run to 9 fraction bits, for six seeds
of each family and both attention implementations, moved no logit by more than 5.0 units, and the
root mean square of the differences stayed below 3.6 units (4.6 over the few steps of a generated
text). The same runs in binary16 gave 2.3 units and 1.6.
"""

from __future__ import annotations

import torch

DL16 = 2.0**-9
BINARY16 = 2.0**-10
BFLOAT16 = 2.0**-7
FLOAT32 = 2.0**-20
"""Eight times the distance of float32 numbers: sums in another order, other exponentials."""
UNITS = 6.0


def allowed_difference(expected: torch.Tensor, unit: float = DL16) -> float:
    """The largest difference a logit may show, given all expected logits."""
    return UNITS * unit * expected.abs().max().item()


def root_mean_square(numbers: torch.Tensor) -> float:
    """Return the root mean square of all numbers of a tensor, computed on the CPU."""
    return numbers.double().square().mean().sqrt().item()


def mean_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the differences, relative to that of the expected logits."""
    difference = found.detach().cpu().float() - expected
    return root_mean_square(difference) / root_mean_square(expected)


def assert_logits_close(found: torch.Tensor, expected: torch.Tensor, unit: float = DL16) -> None:
    """Both bounds of this module hold for ``found`` against ``expected``, each on any device."""
    assert found.shape == expected.shape
    found, expected = found.detach().cpu().float(), expected.detach().cpu().float()
    assert found.isfinite().all()
    worst = (found - expected).abs().max().item()
    assert worst <= allowed_difference(expected, unit)
    assert mean_error(found, expected) <= UNITS * unit


def assert_tokens_agree(
    tokens: torch.Tensor, expected_logits: torch.Tensor, unit: float = DL16
) -> None:
    """Greedy tokens are the expected ones wherever rounding cannot have changed the choice.

    ``tokens`` [batch, steps] were chosen on the device, ``expected_logits`` [batch, steps,
    vocabulary] are those of the same prefixes. Two logits that both moved by the allowed
    difference can swap only if they were closer than twice that; such steps are left out, and must
    be fewer than half.
    """
    best = expected_logits.topk(2, dim=-1)
    margin = best.values[..., 0] - best.values[..., 1]
    decided = margin > 2 * allowed_difference(expected_logits, unit)
    assert decided.float().mean() > 0.5
    assert torch.equal(tokens.cpu()[decided], best.indices[..., 0][decided])
