"""The rules of work division once more, as loops over every way to divide: slow and obvious."""

from __future__ import annotations

import itertools
import math

from spyre.torch_backend.inductor.division import Iteration, MatmulDims

PEAK, BANDWIDTH = 98.304e12 / 2 / 32 / 1e6, 204.8e3


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def choices(candidates, cores):
    return [row for row in itertools.product(*candidates) if math.prod(row) <= cores]


def score(dims: MatmulDims, b: int, m: int, n: int, k: int) -> float:
    B, M, N, K = dims.sizes
    passes = max(1.0, M / m / 8)
    compute = B * M * N * K / (b * m * n * k) / (PEAK * min(1.0, (passes / 8) ** 0.5))
    hbm = 2 * (B * M * K + B * K * N + B * M * N) / BANDWIDTH * max(1.0, max(m, n) / 8)
    psum = (k - 1) * B * M * N * 1.4e-4
    tie = 50 * math.log2(8 / passes) if passes < 8 else 0.0
    return (compute + hbm + psum + tie) * b**1.4


def best_matmul(dims: MatmulDims, cores: int) -> tuple[float, tuple[int, ...]]:
    """The least score, and the first division in the order of nested loops that has it."""
    candidates = [divisors(dim.units) for dim in dims.dims]
    best = (math.inf, ())
    for row in choices(candidates, cores):
        found = score(dims, math.prod(row[:-3]), *row[-3:])
        if found < best[0]:
            best = (found, row)
    return best


def span_bytes(iteration: Iteration, number: int, splits) -> int:
    """First to last byte of core 0's slice along the outermost device dim it moves along."""
    for dim in iteration.op.device_dims[number]:
        found = values(iteration, dim, splits)
        if max(found) > min(found):
            return (max(found) - min(found) + 1) * dim.pitch_bytes
    return 128


def values(iteration: Iteration, dim, splits) -> list[int]:
    """All steps of a device dim within the slice of core 0."""
    inside = [(iteration.dims[k], unit) for k, unit in dim.walked]
    ranges = [
        range(min(d.elements, d.units // splits.get(d.symbol, 1) * d.unit)) for d, _ in inside
    ]
    return [
        sum(at // unit for at, (_, unit) in zip(point, inside, strict=True))
        for point in itertools.product(*ranges)
    ]


def spans_reduced(iteration: Iteration, cores: int, limit: int) -> dict:
    """Pass 1 as §4.1 says it."""
    found = dict.fromkeys(iteration.symbols, 1)
    for number in range(len(iteration.op.tensors)):
        for device_dim in iteration.op.device_dims[number]:
            if span_bytes(iteration, number, found) <= limit:
                break
            walked = [iteration.dims[k] for k, _ in device_dim.walked]
            inside = [d for d in iteration.dims if d in walked and not d.undivided_reason]
            options = [[n for n in divisors(d.units) if n >= found[d.symbol]] for d in inside]
            within, above = None, None
            for row in itertools.product(*options):
                trial = found | {d.symbol: n for d, n in zip(inside, row, strict=True)}
                if math.prod(trial.values()) > cores:
                    continue
                span = span_bytes(iteration, number, trial)
                if span <= limit and (within is None or span > within[0]):
                    within = (span, trial)
                if span > limit and (above is None or span < above[0]):
                    above = (span, trial)
            found = (within or above or (0, found))[1]
            if len(set(values(iteration, device_dim, found))) > 1:
                break
    return {symbol: count for symbol, count in found.items() if count > 1}
