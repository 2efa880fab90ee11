"""Operators whose results cannot be compared value by value, with the properties compared."""

from __future__ import annotations

import re

EMPTY = frozenset(
    {
        "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
        "resize_", "resize_as_",
    }
)  # fmt: skip
"""Elements are undefined (all, or those a resize adds): shape, strides and dtype are compared."""

RANDOM = frozenset(
    {
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
        "normal/in_place", "normal/number_mean", "uniform", "rand_like", "randint", "randint_like",
        "randn", "randn_like", "nn.functional.dropout", "nn.functional.dropout2d",
        "nn.functional.dropout3d", "nn.functional.alpha_dropout",
        "nn.functional.feature_alpha_dropout/with_train", "nn.functional.rrelu",
        "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
        "svd_lowrank", "pca_lowrank",
    }
)  # fmt: skip
"""Operators that may draw random numbers in every sample: shape and dtype are compared, and that
all elements are within the range by definition (:data:`RANGES`)."""

RANDOM_WITH = {
    "nn.functional.scaled_dot_product_attention": re.compile(r"dropout_p=(?!0\.0\b)"),
    "nn.functional.multi_head_attention_forward": re.compile(r", 0\.5,.*training=True"),
}
"""Operators that draw random numbers only in samples whose description matches."""

RANGES = {
    "bernoulli": (0.0, 1.0),
    "exponential": (0.0, float("inf")),
    "geometric": (1.0, float("inf")),
    "log_normal": (0.0, float("inf")),
}
"""Smallest and largest value that a random operator may return for any arguments."""


def is_random(op: str, described: str) -> bool:
    """Return True if the result of this sample depends on a generator."""
    pattern = RANDOM_WITH.get(op)
    return op in RANDOM or (pattern is not None and pattern.search(described) is not None)


HOST_ARGUMENTS = {"tensor_split": (1,)}
"""Positions of tensors that torch takes on the CPU only."""

WITHOUT_REFERENCE = re.compile(r"jiterator_.*")
"""Operators that the CPU cannot run because they compile for another device. They do not count.

Every other sample for which the CPU raises is a failure: the device may have broken the CPU.
"""
