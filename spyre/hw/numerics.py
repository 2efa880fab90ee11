"""Number modes of the device: one frozen value, given to a Device and to everything it plans.

`parse_numerics` reads the text form that ``--numerics``, ``--against`` and ``SPYRE_NUMERICS`` take;
``str`` writes it. Which points are open, and the default for each: hardware reference §1.2, §1.7.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from spyre.dtypes import Mode, NinfView, NumericRules, Rounding
from spyre.errors import UnsupportedError
from spyre.hw import plan_table as tb

_ROUNDINGS: tuple[str, ...] = get_args(Rounding)
_VALUES: dict[str, tuple[str, ...]] = {
    "mode": get_args(Mode),
    "dma_rounding": _ROUNDINGS,
    "alu_rounding": _ROUNDINGS,
    "bfloat16_rounding": _ROUNDINGS,
    "ninf_to_host": get_args(NinfView),
}


class Erratum(msgspec.Struct, frozen=True):
    """A difference of cards from the documented arithmetic, as issues of torch-spyre report it."""

    effect: str
    source: str
    reported: str


ERRATA = {
    "exp-floor": Erratum(
        "exp of 16-bit floats is e^max(x, -17), also of -inf: no result underflows to zero",
        "4517, 4522",
        "September 2026",
    ),
    "log-below-zero": Erratum("log of 16-bit floats is 16.15625 below zero", "1851", "April 2026"),
    "scaled-means": Erratum(
        "mean of 16-bit floats adds scaled elements in DL16 within a core", "2400", "June 2026"
    ),
    "float16-copies": Erratum(
        "copies read float16's subnormals, infinities and NaN as normal numbers",
        "1833, 1851, 2400, 4689",
        "April to September 2026",
    ),
}
"""Errata that can be simulated, by their name in the text form of a number mode."""
CARD = "card"
"""Text form of mode dl16 with the errata of cards."""

_SHORT = {
    "dma": "dma_rounding",
    "alu": "alu_rounding",
    "bf16": "bfloat16_rounding",
    "ninf": "ninf_to_host",
}
"""Names of the options in the text form; ``saturate`` stands alone."""
_DL16_ONLY = ("dma_rounding", "alu_rounding", "saturate", "ninf_to_host", "errata")
_FORMAT_CODES = {"away": tb.DL16, "trunc": tb.DL16_TRUNC, "even": tb.DL16_EVEN}

TEXT_FORM = (
    f"{', '.join(_VALUES['mode'])}, {CARD}; after all but ieee a colon and any of "
    f"dma={'|'.join(_ROUNDINGS)}, alu=…, bf16=…, ninf=inf|nan, saturate, "
    f"{', '.join(ERRATA)}, divided by commas; after ieee only bf16"
)


class Numerics(msgspec.Struct, frozen=True):
    """Storage and rounding of numbers.

    ``mode`` ``dl16``: 16-bit floats are DLFloat16, every operation computes in float32 and rounds
    once. ``dl16-chunk``: the same storage, but matmuls and sums of 16-bit floats accumulate in
    DL16, in chunks of 64. ``ieee``: as ``dl16`` with IEEE binary16 storage, which shows if an error
    is a bug or quantisation.

    ``ninf_to_host``: value of DL16's merged NaN-infinity code in copies to the host.
    ``dma_rounding``: host float → DL16 on copies to the device. ``alu_rounding``: DL16 results of
    operations. ``saturate``: copies to the device turn numbers beyond the largest into ±the
    largest; infinities and NaN stay NINF. ``bfloat16_rounding``: copies to a bfloat16 host tensor.
    ``errata``: names of `ERRATA` in their order there.

    Raises UnsupportedError SPY530 for an unknown mode, SPY540 for an unknown option, SPY541 for an
    option that ``ieee``, which always rounds to even, does not have.
    """

    mode: Mode = "dl16"
    ninf_to_host: NinfView = "inf"
    dma_rounding: Rounding = "away"
    alu_rounding: Rounding = "away"
    saturate: bool = False
    bfloat16_rounding: Rounding = "trunc"
    errata: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, allowed in _VALUES.items():
            if getattr(self, name) not in allowed:
                raise _unknown(name, str(getattr(self, name)), allowed)
        for name in self.errata:
            if name not in ERRATA:
                raise _unknown("erratum", name, tuple(ERRATA))
        ordered = tuple(name for name in ERRATA if name in self.errata)
        msgspec.structs.force_setattr(self, "errata", ordered)
        changed = [name for name in _DL16_ONLY if getattr(self, name) != _DEFAULTS[name]]
        if self.mode == "ieee" and changed:
            message = "number mode ieee has no DL16 options"
            expected = "ieee alone, or with bf16=…"
            found = ", ".join(f"{name} {getattr(self, name)}" for name in changed)
            raise UnsupportedError("SPY541", message, expected=expected, found=found)

    @property
    def half_format(self) -> int:
        """FORMAT word of 16-bit floats, which includes the rounding of their stores."""
        return tb.HALF if self.mode == "ieee" else _FORMAT_CODES[self.alu_rounding]

    @property
    def chunked(self) -> bool:
        """True if matmuls and sums accumulate in DL16."""
        return self.mode == "dl16-chunk"

    @property
    def transfer_rules(self) -> NumericRules:
        """Reference codec rules of host ↔ device copies."""
        return NumericRules(
            self.mode,
            self.dma_rounding,
            self.saturate,
            self.ninf_to_host,
            self.bfloat16_rounding,
            "float16-copies" in self.errata,
        )

    @property
    def alu_rules(self) -> NumericRules:
        """Reference codec rules of the operands of operations."""
        return NumericRules(self.mode, self.alu_rounding)

    def __str__(self) -> str:
        """The text form: the mode, then the options that are not the default."""
        options = [
            f"{short}={getattr(self, name)}"
            for short, name in _SHORT.items()
            if getattr(self, name) != _DEFAULTS[name]
        ]
        options += ["saturate"] if self.saturate else []
        is_card = self.mode == "dl16" and self.errata == tuple(ERRATA)
        options += [] if is_card else self.errata
        mode = CARD if is_card else self.mode
        return f"{mode}:{','.join(options)}" if options else mode


_DEFAULTS = dict(zip(Numerics.__struct_fields__, Numerics.__struct_defaults__, strict=True))


def parse_numerics(text: str) -> Numerics:
    """The value of a text such as ``dl16``, ``ieee``, ``card`` or ``dl16:dma=trunc,exp-floor``.

    After ``card``, ``no-`` and the name of an erratum leave it out. Raises UnsupportedError as
    `Numerics` does, with the allowed values.
    """
    mode, colon, listed = text.strip().partition(":")
    options: dict[str, Any] = {}
    errata = set(ERRATA) if mode == CARD else set()
    for part in listed.split(",") if colon else ():
        name, equals, value = part.strip().partition("=")
        if (name, equals) == ("saturate", ""):
            options["saturate"] = True
        elif part.strip() in ERRATA:
            errata.add(name)
        elif mode == CARD and part.strip().removeprefix("no-") in ERRATA:
            errata.discard(name.removeprefix("no-"))
        elif name in _SHORT and equals:
            options[_SHORT[name]] = value
        else:
            raise _unknown("option", part, (TEXT_FORM,))
    stored = "dl16" if mode == CARD else mode
    return Numerics(mode=stored, errata=tuple(errata), **options)  # type: ignore[arg-type]


def _unknown(name: str, found: str, allowed: tuple[str, ...]) -> UnsupportedError:
    if name == "mode":
        return UnsupportedError(
            "SPY530", f"numerics {found!r} are not simulated", expected=TEXT_FORM, found=found
        )
    message = f"numerics: unknown {name.replace('_', ' ')} {found!r}"
    return UnsupportedError("SPY540", message, expected=" or ".join(allowed), found=found)
