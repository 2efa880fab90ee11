"""Errors of the device's float32 functions against float64, in units in the last place.

`python -m qa.accuracy [FUNCTION ...]` prints the largest error on the device and on torch's CPU
kernels, and the argument where it occurs. Arguments: random numbers of every exponent and both
signs, and more between -110 and 95. Results that are not normal float32 numbers are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

Function = Callable[[torch.Tensor], torch.Tensor]
POWERS = (2, 3, 4, 5, 7, 8, 16, -1, -2, -3, -7, -16)
FUNCTIONS: dict[str, Function] = {
    **{name: getattr(torch, name) for name in ("tanh", "log", "erf", "exp", "sigmoid", "rsqrt")},
    **{name: getattr(torch.nn.functional, name) for name in ("softplus", "selu", "elu")},
    **{name: getattr(torch, name) for name in ("sin", "cos")},
    **{f"pow{power}": partial(torch.pow, exponent=power) for power in POWERS},
}
LEAST_NORMAL = 2.0**-126


def arguments(seed: int, per_exponent: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    fractions = rng.integers(0, 1 << 23, (254, per_exponent), dtype=np.uint32)
    exponents = np.arange(1, 255, dtype=np.uint32)[:, None] << 23
    spread = torch.from_numpy((exponents | fractions).ravel().view(np.float32))
    ranges = ((0.4, 4.0), (-20.0, 20.0), (-110.0, 95.0))
    near = [torch.from_numpy(rng.uniform(*r, 50 * per_exponent)).float() for r in ranges]
    return torch.cat([spread, -spread, *near])


def largest_error(
    found: torch.Tensor, expected: torch.Tensor, x: torch.Tensor
) -> tuple[float, float]:
    """The largest error in units in the last place, infinite for a NaN, and its argument."""
    size = expected.abs()
    normal = size.isfinite() & (size >= LEAST_NORMAL) & (size < torch.finfo(torch.float32).max)
    unit = 2.0 ** (size[normal].log2().floor() - 23)
    errors = (found[normal].double() - expected[normal]).abs() / unit
    errors = errors.nan_to_num(nan=torch.inf, posinf=torch.inf)
    worst = errors.argmax()
    return errors[worst].item(), x[normal][worst].item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("functions", nargs="*", metavar="FUNCTION", help="by default all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-exponent", type=int, default=4000)
    parser.add_argument("--largest", type=float, default=torch.inf, help="of the arguments")
    options = parser.parse_args()
    if unknown := [name for name in options.functions if name not in FUNCTIONS]:
        parser.error(f"unknown: {', '.join(unknown)}; expected some of {', '.join(FUNCTIONS)}")
    x = arguments(options.seed, options.per_exponent)
    x = x[x.abs() <= options.largest]
    on_device = x.to("spyre")
    print(f"{'function':10}{'device':>10}{'at':>18}{'CPU':>10}{'at':>18}")
    for name in options.functions or FUNCTIONS:
        function = FUNCTIONS[name]
        expected = function(x.double())
        device, device_at = largest_error(function(on_device).cpu(), expected, x)
        host, host_at = largest_error(function(x), expected, x)
        print(f"{name:10}{device:10.2f}{device_at:18.9g}{host:10.2f}{host_at:18.9g}", flush=True)


if __name__ == "__main__":
    main()
