"""Sums of the number mode dl16-chunk, one addition after another: our reading of the format's name.

Terms are float32 arrays that are added element by element. Within a chunk of 64 consecutive terms
the total is rounded to DL16 after every addition; totals of chunks are added to the running total
of the core, totals of cores to that of the group, each rounded likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import NumericRules, decode_device, encode_device

Array = npt.NDArray[Any]

CHUNK = 64
_FORMAT = "SEN169_FP16"


def add_rounded(total: Array, term: Array, rules: NumericRules) -> Array:
    """float32 sum of two arrays, rounded to DL16."""
    with np.errstate(all="ignore"):
        exact = np.asarray(total + term, np.float32)
    return decode_device(encode_device(exact, _FORMAT, rules), _FORMAT, rules)


def add_all(terms: Iterable[Array], rules: NumericRules) -> Array:
    """Terms in order, starting from zero, rounded after every addition."""
    total: Array = np.zeros((), np.float32)
    for term in terms:
        total = add_rounded(total, term, rules)
    return total


def sum_in_chunks(terms: Iterable[Array], rules: NumericRules) -> Array:
    """The total of one core: chunks of 64 consecutive terms, then their totals."""
    return add_all((add_all(chunk, rules) for chunk in _chunks(iter(terms))), rules)


def _chunks(terms: Iterator[Array]) -> Iterator[list[Array]]:
    while chunk := list(islice(terms, CHUNK)):
        yield chunk
