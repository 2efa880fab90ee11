"""The operators that must run on the simulated cores, by their names in the database.

For these the runner also demands that they call no fallback on the CPU.
"""

from __future__ import annotations

ON_CORES: dict[str, tuple[str, ...]] = {
    "mm": ("mm",),
    "bmm": ("bmm",),
    "addmm": ("addmm",),
    "matmul": ("matmul", "__rmatmul__"),
    "linear": ("nn.functional.linear",),
    "scaled_dot_product_attention": ("nn.functional.scaled_dot_product_attention",),
    "arithmetic": (
        "add", "sub", "rsub", "mul", "div/no_rounding_mode", "true_divide", "__radd__", "__rsub__",
        "__rmul__", "__rdiv__", "maximum", "minimum", "max/binary", "min/binary",
    ),
    "elementwise": (
        "abs", "neg", "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "floor",
        "nn.functional.relu", "nn.functional.relu6", "nn.functional.leaky_relu",
        "nn.functional.mish", "nn.functional.softplus", "nn.functional.hardtanh",
    ),
    "comparisons": ("eq", "ne", "ge", "le", "gt", "lt"),
    "where": ("where",),
    "clamp": ("clamp", "clamp_min", "clamp_max"),
    "gelu": ("nn.functional.gelu",),
    "silu": ("nn.functional.silu",),
    "sum": ("sum",),
    "mean": ("mean",),
    "amax": ("amax", "max/reduction_no_dim"),
    "amin": ("amin", "min/reduction_no_dim"),
    "max with index": ("max/reduction_with_dim", "min/reduction_with_dim"),
    "var": ("var", "var/unbiased", "std", "std/unbiased"),
    "norm": ("norm", "norm/fro", "norm/inf", "linalg.vector_norm"),  # linalg.norm: also SVDs
    "prod": ("prod",),
    "softmax": ("softmax", "softmax/with_dtype"),
    "log_softmax": ("log_softmax", "log_softmax/with_dtype"),
    "layer_norm": ("nn.functional.layer_norm", "native_layer_norm"),
    "rms_norm": ("nn.functional.rms_norm",),
    "embedding": ("nn.functional.embedding",),
    "index_select": ("index_select",),
    "gather": ("gather",),
    "index": ("__getitem__",),
    "cat": ("cat",),
    "stack": ("stack",),
    "slices": (
        "slice", "narrow", "select", "split", "split/list_args", "split_with_sizes", "chunk",
        "unbind",
    ),
    "slice assignment": ("slice_scatter", "select_scatter"),
    "copy_": ("clone",),
    "fill_": ("fill", "zero_"),
    "transpose": ("transpose", "t", "T", "mT"),
    "permute": ("permute", "movedim"),
    "contiguous": ("contiguous",),
    "conversions": ("to", "half", "bfloat16", "float", "bool", "long", "int"),
    "top-k": ("topk",),
    "arange": ("arange",),
    "ones": ("ones", "ones_like", "new_ones"),
    "zeros": ("zeros", "zeros_like", "new_zeros"),
    "full": ("full", "full_like", "new_full"),
    "cumsum": ("cumsum",),
    "tril": ("tril",),
    "triu": ("triu",),
}  # fmt: skip
"""The device's promised operations, each with the operators of the database that test it."""

DELIVERED = {op: name for name, ops in ON_CORES.items() for op in ops}
"""Promise per operator of the database."""
