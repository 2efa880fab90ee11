"""Checked settings from :mod:`..config` and the environment, and the cache keys that contain them.

The keys of Inductor and AOTAutograd cover a graph with its inputs and attributes, Inductor's
settings and the ``uuid`` of registered passes. Everything else that generated code depends on is in
`cache_key`, the uuid of our passes, or in an attribute of the graph module (`mark_graph`);
``graph_module.meta`` is not part of AOTAutograd's keys.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch

import spyre
from spyre import config as environment
from spyre.cache import digest_of_sources
from spyre.config import Variable
from spyre.errors import LaunchError, SpyreError
from spyre.hw.spec import CORES, LX_BYTES
from spyre.torch_backend.device import usable_cores, warn_user
from spyre.torch_backend.inductor import config
from spyre.torch_backend.inductor.base.notes import wants_notes
from spyre.torch_backend.inductor.hints import hints_key

_SWITCH_WORDS = {
    **dict.fromkeys(("1", "true", "on", "yes"), True),
    **dict.fromkeys(("0", "false", "off", "no"), False),
}

ASKED = "asked"
"""Value of SPYRE_SYMBOLIC_SIZES that leaves the choice to PyTorch's settings."""


class Settings(msgspec.Struct, frozen=True):
    """How graphs are compiled; fields as in :mod:`.config`.

    ``lx_capacity_bytes``: of one core, for plans.
    """

    sencores: int
    core_id_k_fast_emission: bool
    lx_planning: bool
    lx_capacity_bytes: int
    coarse_tiling: bool
    coarse_tiling_groups_fn: Callable[..., Any] | None
    auto_tile: bool
    unroll_loops: bool
    bundle_symbolic_args: bool
    symbolic_sizes: bool | None

    @property
    def lx_fraction(self) -> float:
        """The part of LX that the backend keeps."""
        return round(1.0 - self.lx_capacity_bytes / LX_BYTES, 6)


_SWITCHES = {
    "core_id_k_fast_emission": environment.K_FAST_EMISSION,
    "lx_planning": environment.LX_PLANNING,
    "coarse_tiling": environment.COARSE_TILING,
    "auto_tile": environment.AUTO_TILE,
    "unroll_loops": environment.UNROLL_LOOPS,
    "bundle_symbolic_args": environment.BUNDLE_SYMBOLIC_ARGS,
}


def settings() -> Settings:
    """The current settings; LaunchError SPY968 for an invalid value.

    SPY902 and SPY985 for SENCORES and DXP_LX_FRAC_AVAIL of the environment; SpyreError SPY978 for
    a ``coarse_tiling_groups_fn`` without a name. Removed variables that are set give a warning.
    """
    for message in environment.removed_variables():
        warn_user(message)
    return Settings(
        sencores=_cores(),
        lx_capacity_bytes=_capacity_bytes(),
        coarse_tiling_groups_fn=_groups_function(),
        symbolic_sizes=_symbolic_sizes(),
        **{name: _switch(name, variable) for name, variable in _SWITCHES.items()},
    )


def chosen_settings() -> dict[str, Any]:
    """The current values of :mod:`.config` by option name, for a later compilation."""
    module: Any = config
    return {f"spyre.{name}": value for name, value in module.get_config_copy().items()}


def _switch(name: str, variable: Variable) -> bool:
    value = getattr(config, name)
    if isinstance(value, bool):
        return value
    if value is not None:
        raise _wrong_setting(name, "True or False", repr(value))
    text = variable.read().strip().lower()
    if text not in _SWITCH_WORDS:
        raise _wrong_setting(variable.name, "1 or 0", text)
    return _SWITCH_WORDS[text]


def _symbolic_sizes() -> bool | None:
    if config.symbolic_sizes is None and environment.SYMBOLIC_SIZES.read() == ASKED:
        return None
    return _switch("symbolic_sizes", environment.SYMBOLIC_SIZES)


def _cores() -> int:
    value = config.sencores
    if value is None:
        return usable_cores()
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= CORES:
        raise _wrong_setting("sencores", f"1 to {CORES}", repr(value))
    return value


def _capacity_bytes() -> int:
    value = config.lx_fraction_kept
    if value is None:
        return lx_capacity_bytes()
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise _wrong_setting("lx_fraction_kept", "0 to 1", repr(value))
    return int(LX_BYTES * (1.0 - value))


def lx_capacity_bytes() -> int:
    """Bytes of one core's LX that plans may use. The backend keeps a fifth (hardware reference §2)
    or the fraction DXP_LX_FRAC_AVAIL. LaunchError SPY985 if that is not a fraction.
    """
    text = environment.LX_FRACTION_KEPT.read().strip()
    try:
        kept = float(text)
    except ValueError:
        kept = -1.0
    if not 0.0 <= kept <= 1.0:
        raise LaunchError(
            "SPY985",
            "DXP_LX_FRAC_AVAIL is no fraction",
            expected="0 to 1, the share of the scratchpad that plans leave to the backend",
            found=text,
        )
    return int(LX_BYTES * (1.0 - kept))


def _groups_function() -> Callable[..., Any] | None:
    value: Any = config.coarse_tiling_groups_fn
    if value is None:
        return None
    if not callable(value):
        raise _wrong_setting("coarse_tiling_groups_fn", "a function", repr(value))
    return checked_groups_fn(value)


def _wrong_setting(name: str, expected: str, found: str) -> LaunchError:
    return LaunchError("SPY968", f"{name} cannot be this", expected=expected, found=found)


KEY_ATTRIBUTE = "spyre_key"


def cache_key() -> str | None:
    """A digest of this package's sources and of the current settings.

    None, which disables caching, if a setting is a function without a source file.
    Errors as of `settings`.
    """
    digest = hashlib.sha256(source_digest().encode())
    chosen = settings()
    for name in chosen.__struct_fields__:
        value = getattr(chosen, name)
        text = _function_key(value) if callable(value) else repr(value)
        if text is None:
            return None
        digest.update(f"\0{name}={text}".encode())
    digest.update(f"\0notes={wants_notes()}".encode())
    return digest.hexdigest()


def mark_graph(
    graph_module: Any, known: Mapping[Any, Any], identity: str, rest: Any = None
) -> None:
    """Store hints and ``known`` properties of inputs in an attribute of a graph, for cache keys.

    ``identity``: of the graph whose names the generated code contains. ``rest``: other
    values that it depends on.
    """
    if isinstance(graph_module, torch.fx.GraphModule):
        inputs = tuple((key, given) for key, given in known.items() if given is not None)
        setattr(graph_module, KEY_ATTRIBUTE, (hints_key(graph_module), inputs, identity, rest))


SOURCE_SUFFIXES = (".py", ".lark", ".toml")


@cache
def source_digest() -> str:
    """A digest of all source files of this package."""
    paths = []
    for directory, folders, files in os.walk(Path(spyre.__file__).parent):
        folders[:] = [name for name in folders if name != "__pycache__"]
        paths += [os.path.join(directory, name) for name in files if name.endswith(SOURCE_SUFFIXES)]
    return digest_of_sources(sorted(paths))


def _function_key(function: Callable[..., Any]) -> str | None:
    """A function's name and the contents of its file."""
    try:
        path = inspect.getsourcefile(function)
        source = b"" if path is None else Path(path).read_bytes()
    except (OSError, TypeError):
        return None
    name = f"{function.__module__}.{function.__qualname__}"
    return f"{name} {hashlib.sha256(source).hexdigest()}" if source else None


def checked_groups_fn(function: Callable[..., Any]) -> Callable[..., Any]:
    """``coarse_tiling_groups_fn`` itself, if compile caches can name it.

    SpyreError SPY978 for lambdas and functions that are not at the top of a module.
    """
    name: str = getattr(function, "__qualname__", "")
    module: str | None = getattr(function, "__module__", None)
    named: Any = None
    if name.isidentifier() and module:
        named = getattr(importlib.import_module(module), name, None)
    if named is None or named != function:
        raise SpyreError(
            "SPY978",
            "coarse_tiling_groups_fn must be a named function of a module",
            found=name or repr(function),
            hint="compile caches pickle it by its name: no lambda, no nested function",
        )
    return function
