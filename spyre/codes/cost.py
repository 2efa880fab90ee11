"""Causes and fixes of SPY76x: machine files of the cost models."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

COST_EXPLANATIONS: dict[str, E] = {
    "SPY760": E(
        "The file of a machine's constants is not there, cannot be read, or is no TOML.",
        "Check the path; correct the line the TOML reader names.",
    ),
    "SPY761": E(
        "A machine file has a table or key the cost models do not know, or a constant lacks one "
        "of value, unit, kind and source.",
        "Use the names of the shipped spyre.toml; what a file leaves out is taken from there.",
    ),
    "SPY762": E(
        "A constant has another unit or type than the cost models take, is negative, says no "
        "known kind, or has no source.",
        "Convert the value to the unit that is expected, and say where it is from.",
    ),
}
