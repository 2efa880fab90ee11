"""ATen's own rules for arguments, which the kernels of the card replace.

They are within the CPU's kernels as much as in functions of shapes, and those of shapes that torch
has in Python import Dynamo first. So the CPU is asked: the operator runs there over zeros, once for
all calls with tensors of the same sizes, strides and dtypes and the same other arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spyre.torch_backend.compat import operator
from spyre.torch_backend.eager.launch import flat
from spyre.torch_backend.eager.overlap import stand_ins
from spyre.torch_backend.fallback import tensors_in, wrap_numbers

SAYS_NOTHING = ("not implemented for", "ZeroDivisionError")
"""Parts of torch's messages for a dtype that an operation of the CPU lacks, not one it refuses, and
for integers divided by the zeros.
"""

MAX_FLOAT = 127.0
"""Up to here every dtype has the number, and which one it is decides nothing."""


def call_signature(
    function: object, args: Sequence[Any], kwargs: Mapping[str, Any], numbers_decide: bool
) -> Any:
    """Return the key of a call for the checks and the choice of a kernel.

    It has all arguments, and of tensors all but the elements, except those of a CPU tensor of rank
    0, which is a number; floats up to `MAX_FLOAT` only if ``numbers_decide``.
    """
    parts: list[object] = [function, torch.get_default_dtype(), *kwargs]
    for value in flat((*args, *kwargs.values())):
        if isinstance(value, torch.Tensor):
            parts += (value.dtype, value.shape, value.stride(), value.device)
            if value.is_cpu and not value.dim():
                parts.append(value.item())
        elif type(value) is float and -MAX_FLOAT <= value <= MAX_FLOAT and not numbers_decide:
            parts.append(float)
        else:
            parts += (type(value), value)
    return tuple(parts)


def refuses(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return True if the CPU refuses arguments of these sizes, strides and dtypes, or zeros."""
    host_args, host_kwargs = stand_ins((list(args), dict(kwargs)))
    wrap_numbers(op, host_args)
    masks = (torch.bool, torch.uint8)
    if op is operator("_index_put_impl_") and any(
        t.dtype in masks for t in tensors_in(host_args[1])
    ):
        # how many values it takes depends on the mask; they are compared with its positions later
        host_args[2] = host_args[2].new_zeros(())
    try:
        with torch.no_grad():
            op(*host_args, **host_kwargs)
    except Exception as error:  # torch has no type for these
        return not any(part in str(error) for part in SAYS_NOTHING)
    return False
