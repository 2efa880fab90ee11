"""The table of golden vectors: per operation its cases, how inputs are drawn, how exact it must be.

`make_golden.py` writes inputs and expected outputs of every case to ``golden/ops/<operation>.npz``,
`test_golden_ops.py` runs the operation on the stored inputs. An operation added to the op table
needs a row here and, in `golden_formulas.py`, its mathematics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from tests.hw.golden_case import Case
from tests.hw.golden_inputs import (
    Array,
    beyond_eight_bits,
    bytes_,
    eight_bit_floats,
    floats_of_words,
    moments,
    nibbles,
    nonzero,
    normals,
    positives,
    powers,
    quarters,
    rows_of_table,
    sixteenths,
    truths,
    words,
)
from tests.hw.golden_packed_shapes import (
    FP8,
    INT4,
    INT8,
    INT32,
    QUANTIZE,
    packed_products,
    recoded,
    shuffled,
    words as word_cases,
)
from tests.hw.golden_shapes import (
    DL16,
    FP32,
    code,
    conversions,
    copies,
    elementwise,
    largest,
    layer_norm,
    layer_norm_scale,
    products,
    reduced,
    restickified,
    zero_mean,
)
from tests.hw.golden_window_shapes import (
    CHANNELS,
    EXTREMES,
    NMAP,
    TOTALS,
    convolutions,
    pooled,
)

Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
VECTORS = Path(__file__).parent / "golden" / "ops"


class Row(msgspec.Struct, frozen=True):
    """``draws``: one for all inputs, or one each. ``ulps``: 0 where every step is exact."""

    cases: tuple[Case, ...]
    draws: Draw | Sequence[Draw]
    ulps: int = 0

    def draw(self, operand: int) -> Draw:
        return self.draws if callable(self.draws) else self.draws[operand]


CLIP = {"clipMin": code(-1.0), "clipMax": code(1.5)}
SOFTPLUS = {"softplusBeta": code(1.5), "softplusThresh": code(20.0)}
TOKEN_SCALE = {"mulConst": code(1 / 448), "clipMin": code(2.0**-23), "clipMax": code(2.0**-6)}

DRAWS = {"": quarters, "fp8": quarters, "int8": bytes_, "int4": nibbles}
"""Functions that draw inputs, by the suffix of batchmatmul and conv2d."""
PACKINGS = ("ch", "mb", "wt")

GOLDEN: dict[str, Row] = {
    **{
        name: Row(elementwise(name, 2), normals)
        for name in ("add", "sub", "revsub", "mul", "maximum", "minimum", "biasadd")
    },
    **{
        name: Row(elementwise(name, 2), quarters)
        for name in (
            *("equal", "notequal", "greaterequal"),
            *("lesserequal", "greaterthan", "lesserthan"),
        )
    },
    "realdiv": Row(elementwise("realdiv", 2), [normals, nonzero], 1),
    "where3": Row(elementwise("where3", 3), [truths, normals, normals]),
    "fnms": Row(elementwise("fnms", 3), quarters),
    "batchnormfwd": Row(elementwise("batchnormfwd", 3), quarters),
    "layernormnorm": Row(layer_norm(), quarters),
    "layernormscale": Row(layer_norm_scale(), moments, 1),
    **{name: Row(elementwise(name), normals) for name in ("abs", "neg", "relufwd", "relu6fwd")},
    "floor": Row(elementwise("floor"), normals),
    "clip": Row(elementwise("clip", 1, CLIP), normals),
    **{
        name: Row(elementwise(name, wide=False), normals, 1)
        for name in (
            *("exp", "fastexp", "tanh", "sigmoid", "fastsigmoid"),
            *("leakyrelufwd", "gelufwd", "silu", "mish"),
        )
    },
    "softplus": Row(elementwise("softplus", 1, SOFTPLUS, wide=False), normals, 1),
    **{name: Row(elementwise(name, wide=False), positives, 1) for name in ("log", "rsqrt")},
    "sqrt": Row(elementwise("sqrt"), positives, 1),
    "reciprocal": Row(elementwise("reciprocal"), nonzero, 1),
    "identity": Row(copies(), [normals, rows_of_table]),
    "sum": Row(reduced("sum"), quarters),
    **{name: Row(reduced(name), normals) for name in ("max", "min", "absmax")},
    "mean": Row(reduced("mean", constant="scaling_factor"), quarters, 1),
    "prod": Row(reduced("prod", "rows"), powers),
    "exx2": Row(
        (
            *reduced("exx2", "stick", "exx2scale", lanes=2),
            *zero_mean(reduced("exx2", "stick", "exx2scale", {"useZeroMean": 1}, lanes=2)),
        ),
        quarters,
        1,
    ),
    "exx2_zeromean": Row(reduced("exx2_zeromean", "stick", "exx2scale", lanes=2), quarters, 1),
    "quantscalepertoken": Row(reduced("quantscalepertoken", "stick", wide=False), normals, 1),
    "quantscalepertokenfp8": Row(
        reduced("quantscalepertokenfp8", "stick", "", TOKEN_SCALE, wide=False), normals, 1
    ),
    "dl16tofp32": Row(conversions("dl16tofp32"), normals),
    "fp32todl16": Row(conversions("fp32todl16"), normals),
    "ReStickifyOpHBM": Row(restickified(), normals),
    "topkvalue": Row(largest("topkvalue"), quarters),
    "topkindex": Row((*largest("topkindex"), *largest("topkindex", "IEEE_INT32")), quarters),
    "batchmatmul": Row(products(), quarters),
    **{f"batchmatmul{kind}": Row(packed_products(kind), DRAWS[kind]) for kind in list(DRAWS)[1:]},
    **{f"conv2d{kind}": Row(convolutions(kind), draw) for kind, draw in DRAWS.items()},
    "depthwiseconv2dnative": Row(pooled("depthwiseconv2dnative", CHANNELS), quarters),
    "maxpoolfwd": Row(pooled("maxpoolfwd", EXTREMES), normals),
    "avgpoolfwd": Row(pooled("avgpoolfwd", TOTALS, NMAP), quarters),
    "avgpoolnmapfwd": Row(pooled("avgpoolnmapfwd", TOTALS), quarters),
    **{
        f"csqint8{rule}": Row(recoded(f"csqint8{rule}", rule, INT8, DL16, QUANTIZE), sixteenths)
        for rule in PACKINGS
    },
    "csqint4": Row(recoded("csqint4", "int4", INT4, DL16, QUANTIZE), sixteenths),
    "csqint4wt": Row(recoded("csqint4wt", "wt4", INT4, DL16, QUANTIZE), sixteenths),
    **{
        f"qfp8{rule}": Row(recoded(f"qfp8{rule}", rule, FP8), beyond_eight_bits)
        for rule in PACKINGS
    },
    "fp8todl16": Row(recoded("fp8todl16", "ch", DL16, FP8), eight_bit_floats),
    "addi32toi32": Row(word_cases("addi32toi32", 2, INT32, INT32), words),
    "muli32toi32": Row(word_cases("muli32toi32", 2, INT32, INT32), words),
    "fp32toint32": Row(word_cases("fp32toint32", 1, FP32, INT32), floats_of_words),
    "int32tofp32": Row(word_cases("int32tofp32", 1, INT32, FP32), words),
    "shuffle": Row(shuffled(), normals),
}
"""Every operation with golden vectors."""
