"""Settings of compiled functions, as a torch config module: set them, patch them, or pass them as
``torch.compile(fn, options={"spyre.auto_tile": True})``.

None: use the environment variable, see `spyre.config`. `base.settings` reads and checks them. As
in every torch config module, values are set for the current thread.
"""

import sys
from collections.abc import Callable

from spyre.torch_backend.compat import add_inductor_options, install_config_module

sencores: int | None = None
"""SENCORES: cores an operation may use, 1 to 32."""

core_id_k_fast_emission: bool | None = None
"""SPYRE_CORE_ID_K_FAST_EMISSION: cores that add up one tile of a matmul are neighbours."""

lx_planning: bool | None = None
"""LX_PLANNING: intermediate results may be placed in the cores' scratchpads."""

lx_fraction_kept: float | None = None
"""DXP_LX_FRAC_AVAIL: fraction of the scratchpad that plans leave free, 0 to 1."""

coarse_tiling: bool | None = None
"""COARSE_TILING: loops over tiles, from hints or ``coarse_tiling_groups_fn``."""

coarse_tiling_groups_fn: Callable | None = None  # type: ignore[type-arg]
"""Named function of a module: operations → groups as `coarse_tile` takes them."""

auto_tile: bool | None = None
"""SPYRE_AUTO_TILE: choose loops over tiles by modelled time for operations without hints."""

unroll_loops: bool | None = None
"""UNROLL_LOOPS: bundles have no loops, but one operation per iteration."""

bundle_symbolic_args: bool | None = None
"""BUNDLE_SYMBOLIC_ARGS: addresses in bundles are launch arguments, not constants."""

symbolic_sizes: bool | None = None
"""SPYRE_SYMBOLIC_SIZES: compile once for all sizes. None in both: by PyTorch's settings."""


def install() -> None:
    """Add the settings to Inductor's config, as ``spyre.name``; a second time changes nothing."""
    add_inductor_options("spyre", sys.modules[__name__])


install_config_module(sys.modules[__name__])
