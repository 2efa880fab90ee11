"""The rules of work division once more, as loops over every way to divide: slow and obvious."""

from __future__ import annotations

import itertools
import math

from spyre.hw.cost import default_machine, kernel_ns, product_counts
from spyre.hw.counters import ProductShape
from spyre.torch_backend.inductor.division import Iteration


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def choices(candidates, cores):
    return [row for row in itertools.product(*candidates) if math.prod(row) <= cores]


def best_matmul(dims, sizes, default: int, cores: int) -> tuple[int, ...]:
    """The division of ``dims`` (batch, row, column, inner) with the least modelled time, and of
    those within 1 % the fastest of those with most cores.

    ``sizes``: of the product; ``default``: cores of the default division.
    """
    found = []
    for row in choices([divisors(dim.units) for dim in dims], cores):
        if 2 * math.prod(row) < default:
            continue
        *batch, m, n, k = row
        names = dict(batch_cores=math.prod(batch), m_cores=m, n_cores=n, k_cores=k)
        counts = product_counts(ProductShape(**sizes, **names), "SEN169_FP16")
        found.append((kernel_ns([counts], default_machine()).total_ns, row))
    least = min(found)[0]
    close = [(-math.prod(row), time, row) for time, row in found if time <= 1.01 * least]
    return min(close)[2]


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
