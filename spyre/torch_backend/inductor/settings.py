"""`settings`: what :mod:`.config` and the environment say, checked; part of every cache key."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from spyre import config as environment
from spyre.config import Variable
from spyre.errors import LaunchError
from spyre.hw.spec import CORES, LX_BYTES
from spyre.torch_backend.cores import usable_cores
from spyre.torch_backend.inductor import config
from spyre.torch_backend.inductor.division.matmul_cost import PLANNERS
from spyre.torch_backend.inductor.scratchpad.capacity import lx_capacity_bytes
from spyre.torch_backend.inductor.scratchpad.eligibility import OPERATIONS
from spyre.torch_backend.inductor.scratchpad.plan import SOLVERS
from spyre.torch_backend.inductor.tiling.groups import checked_groups_fn

_WORDS = {
    **dict.fromkeys(("1", "true", "on", "yes"), True),
    **dict.fromkeys(("0", "false", "off", "no"), False),
}


ASKED = "asked"
"""SPYRE_SYMBOLIC_SIZES where PyTorch is to say it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How graphs are compiled; fields as in :mod:`.config`.

    ``lx_capacity_bytes``: of one core, for plans.
    """

    sencores: int
    work_division: str
    core_id_k_fast_emission: bool
    lx_planning: bool
    lx_solver: str
    lx_rule: str
    lx_capacity_bytes: int
    coarse_tiling: bool
    coarse_tiling_groups_fn: Callable[..., Any] | None
    auto_tile: bool
    unroll_loops: bool
    bundle_symbolic_args: bool
    symbolic_sizes: bool | None


def settings() -> Settings:
    """The settings that are in force; LaunchError SPY968 for a value that cannot be.

    SPY902 and SPY985 for SENCORES and DXP_LX_FRAC_AVAIL of the environment; SpyreError SPY978 for
    a ``coarse_tiling_groups_fn`` without a name.
    """
    allow_all = _switch("allow_all_ops_in_lx_planning", environment.ALLOW_ALL_OPS_IN_LX_PLANNING)
    rule = _name("lx_rule", environment.LX_RULE, OPERATIONS)
    return Settings(
        sencores=_cores(),
        work_division=_name("work_division", environment.WORK_DIVISION, PLANNERS),
        core_id_k_fast_emission=_switch("core_id_k_fast_emission", environment.K_FAST_EMISSION),
        lx_planning=_switch("lx_planning", environment.LX_PLANNING),
        lx_solver=_name("lx_solver", environment.LX_SOLVER, SOLVERS),
        lx_rule="all" if allow_all else rule,
        lx_capacity_bytes=_capacity_bytes(),
        coarse_tiling=_switch("coarse_tiling", environment.COARSE_TILING),
        coarse_tiling_groups_fn=_function(),
        auto_tile=_switch("auto_tile", environment.AUTO_TILE),
        unroll_loops=_switch("unroll_loops", environment.UNROLL_LOOPS),
        bundle_symbolic_args=_switch("bundle_symbolic_args", environment.BUNDLE_SYMBOLIC_ARGS),
        symbolic_sizes=_symbolic_sizes(),
    )


def setting_names() -> tuple[str, ...]:
    """Names of all settings, as in :mod:`.config`."""
    module: Any = config
    return tuple(module.get_config_copy())


def chosen_settings() -> dict[str, Any]:
    """What :mod:`.config` says now, by the names options have, for compiling later."""
    return {f"spyre.{name}": getattr(config, name) for name in setting_names()}


def _switch(name: str, variable: Variable) -> bool:
    value = getattr(config, name)
    if isinstance(value, bool):
        return value
    if value is not None:
        raise _wrong(name, "True or False", repr(value))
    text = variable.read().strip().lower()
    if text not in _WORDS:
        raise _wrong(variable.name, "1 or 0", text)
    return _WORDS[text]


def _name(name: str, variable: Variable, known: Collection[str]) -> str:
    value = getattr(config, name)
    source, found = (variable.name, variable.read()) if value is None else (name, value)
    if not isinstance(found, str) or found not in known:
        raise _wrong(source, ", ".join(known), repr(found))
    return found


def _symbolic_sizes() -> bool | None:
    if config.symbolic_sizes is None and environment.SYMBOLIC_SIZES.read() == ASKED:
        return None
    return _switch("symbolic_sizes", environment.SYMBOLIC_SIZES)


def _cores() -> int:
    value = config.sencores
    if value is None:
        return usable_cores()
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= CORES:
        raise _wrong("sencores", f"1 to {CORES}", repr(value))
    return value


def _capacity_bytes() -> int:
    value = config.lx_fraction_kept
    if value is None:
        return lx_capacity_bytes()
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise _wrong("lx_fraction_kept", "0 to 1", repr(value))
    return int(LX_BYTES * (1.0 - value))


def _function() -> Callable[..., Any] | None:
    value: Any = config.coarse_tiling_groups_fn
    if value is None:
        return None
    if not callable(value):
        raise _wrong("coarse_tiling_groups_fn", "a function", repr(value))
    return checked_groups_fn(value)


def _wrong(name: str, expected: str, found: str) -> LaunchError:
    return LaunchError("SPY968", f"{name} cannot be this", expected=expected, found=found)
