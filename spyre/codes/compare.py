"""Causes and fixes of SPY6xx: comparison of results, and verifying."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

COMPARE_EXPLANATIONS: dict[str, E] = {
    "SPY601": E(
        "Outputs are further from what was expected than the tolerance allows.",
        "Look at the worst element's core, execute and address; --numerics ieee tells a bug from "
        "quantisation, --verify a bug of the simulator from one of the program.",
    ),
    "SPY602": E(
        "What was expected has another shape than the output.",
        "Give the expected tensors in argument order, with the host shapes.",
    ),
    "SPY620": E(
        "--verify ran an execute on the engine and on the reference implementation, and they "
        "disagree: a bug in spyre, or cores that depend on each other within one execute.",
        "Write the run with --dump and report it.",
    ),
    "SPY621": E(
        "--verify left an execute out because its iteration space is above the limit.",
        "Raise --verify-points; the reference takes up to 3 microseconds per point.",
    ),
}
