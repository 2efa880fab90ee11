"""Our readings: what the public text leaves open in an operation's mathematics, each said once.

Kernels and their twins both read :data:`READINGS`; a change of a default here changes both. Kernels
take the values when they are compiled, so they are constants of a program run, not options. The
proposals are those of the operations reference §3 and §4. `python -m tools.docs` lists this file
in docs/operations.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal


def _switch(default: Any, ops: str, meaning: str, others: str) -> Any:
    """A reading; ``ops`` are the op-table names it concerns, ``others`` the positions not taken."""
    return field(default=default, metadata={"ops": ops.split(), "is": meaning, "others": others})


@dataclass(frozen=True, slots=True)
class Readings:
    """One position per open question; other positions work, and are tested, but not the default."""

    gelu_form: Literal["erf", "tanh"] = _switch(
        "erf",
        "gelufwd",
        "x·Φ(x); compilers send the exact and the tanh form to this one operation",
        "`tanh`",
    )
    leaky_slope: float = _switch(
        0.01, "leakyrelufwd", "the slope below zero; no constant is listed for it", "any number"
    )
    fnms_form: Literal["c-ab", "-c-ab"] = _switch(
        "c-ab", "fnms", "c - a·b, rounded once", "`-c-ab`"
    )
    batchnorm_operands: Literal["scale-shift", "shift-scale"] = _switch(
        "scale-shift",
        "batchnormfwd",
        "x·scale + shift, the scale is the second operand",
        "`shift-scale`",
    )
    variance_floor: bool = _switch(
        True,
        "layernormscale",
        "E[x²] - E[x]² counts as 0 where rounding made it negative",
        "`False`: a NaN there, stored as NINF",
    )
    exx2_lanes: Literal["alternate", "first"] = _switch(
        "alternate",
        "exx2 exx2_zeromean",
        "even lanes hold the mean, odd lanes the mean square; only lanes 0 and 1 are read again",
        "`first`: lanes 0 and 1 hold them, the rest zero",
    )
    token_maximum: float = _switch(
        127.0, "quantscalepertoken", "the scale is max |x| / 127", "any number instead of 127"
    )
    token_clip: Literal["scale", "maximum"] = _switch(
        "scale",
        "quantscalepertokenfp8",
        "clipMin and clipMax bound the scale max |x| · mulConst",
        "`maximum`: they bound max |x|, before mulConst",
    )
    topk_ties: Literal["lowest", "highest"] = _switch(
        "lowest", "topkvalue topkindex", "among equals the lower position comes first", "`highest`"
    )


READINGS = Readings()
"""The readings in force."""


@dataclass(frozen=True, slots=True)
class Convention:
    """An open question with only one answer simulated: ``meaning`` says which, for ``ops``."""

    name: str
    ops: tuple[str, ...]
    meaning: str


CONVENTIONS = (
    Convention(
        "fast",
        ("fastexp", "fastsigmoid"),
        "computed as `exp` and `sigmoid`; what the card approximates is not public",
    ),
    Convention(
        "replicate",
        (
            *("layernormscale", "sum", "max", "min", "absmax", "mean", "prod"),
            *("quantscalepertoken", "quantscalepertokenfp8"),
        ),
        "a tensor with scale -2 keeps one value per stick; writers put it into all lanes, since "
        "programs read such a tensor as a full stick under another dim name, readers take lane 0 "
        "(and `layernormscale` lanes 0 and 1)",
    ),
    Convention(
        "zero",
        ("realdiv", "reciprocal"),
        "division by zero gives infinity, which is stored as NINF; `0/0` is a NaN, stored as NINF "
        "too",
    ),
    Convention(
        "nan",
        ("equal", "notequal", "greaterequal", "lesserequal", "greaterthan", "lesserthan"),
        "comparisons with NaN are false, but `notequal` is true; DL16 operands are never NaN (see "
        "*ninf*), float32 ones may be",
    ),
    Convention(
        "zero mean",
        ("exx2",),
        "`useZeroMean` may be missing; where its bits are not zero the mean is stored as 0, as "
        "`exx2_zeromean` does",
    ),
    Convention(
        "positions",
        ("topkindex",),
        "stored as int32 or, where the output has a float format, as numbers",
    ),
    Convention(
        "arrangement",
        ("dl16tofp32", "fp32todl16"),
        "64 columns may be spread over two 32-bit sticks (or gathered) in groups of four; the SDSC "
        "does not say whether. A conversion permutes only if the argument it writes or reads has "
        "that element arrangement in its layout (`DL16_TO_FP32`, `FP32_TO_DL16`); with `STANDARD` "
        "on both sides it converts values and keeps their places",
    ),
)
"""Readings that are no switch."""


@dataclass(frozen=True, slots=True)
class ReadingRow:
    """A reading as the documentation shows it."""

    name: str
    value: str
    ops: tuple[str, ...]
    meaning: str
    others: str


def reading_rows() -> Iterator[ReadingRow]:
    """Every switch with its position, then every convention."""
    for switch in fields(Readings):
        about = switch.metadata
        value = str(getattr(READINGS, switch.name))
        yield ReadingRow(switch.name, value, tuple(about["ops"]), about["is"], about["others"])
    for convention in CONVENTIONS:
        yield ReadingRow(convention.name, "", convention.ops, convention.meaning, "")


def readings_of(name: str) -> tuple[str, ...]:
    """Names of the readings that concern the operation ``name``."""
    return tuple(row.name for row in reading_rows() if name in row.ops)
