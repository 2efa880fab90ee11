"""Settings of compiled functions, as a torch config module: set them, patch them, or pass them as
``torch.compile(fn, options={"spyre.auto_tile": True})``.

None: what the environment says, see `spyre.config`. :mod:`.settings` reads and checks them. As of
every torch config module, what is set holds in the thread that set it.
"""

import sys
from collections.abc import Callable

from spyre.torch_backend.compat import add_inductor_options, install_config_module

sencores: int | None = None
"""SENCORES: cores an operation may use, 1 to 32."""

core_id_k_fast_emission: bool | None = None
"""SPYRE_CORE_ID_K_FAST_EMISSION: cores that add up one tile of a matmul are neighbours."""

lx_planning: bool | None = None
"""LX_PLANNING: intermediate results may lie in the cores' scratchpads."""

lx_fraction_kept: float | None = None
"""DXP_LX_FRAC_AVAIL: share of the scratchpad that plans leave free, 0 to 1."""

coarse_tiling: bool | None = None
"""COARSE_TILING: loops over tiles, where hints or ``coarse_tiling_groups_fn`` ask for them."""

coarse_tiling_groups_fn: Callable | None = None  # type: ignore[type-arg]
"""Named function of a module: operations → groups as `coarse_tile` takes them."""

auto_tile: bool | None = None
"""SPYRE_AUTO_TILE: choose loops over tiles by modelled time where no hint asks for any."""

unroll_loops: bool | None = None
"""UNROLL_LOOPS: loops are written out in bundles."""

bundle_symbolic_args: bool | None = None
"""BUNDLE_SYMBOLIC_ARGS: addresses of bundles are launch arguments, not numbers."""

symbolic_sizes: bool | None = None
"""SPYRE_SYMBOLIC_SIZES: compile once for all sizes. None there too: where PyTorch is asked for
dynamic sizes."""


def install() -> None:
    """Add the settings to Inductor's config, as ``spyre.name``; a second time changes nothing."""
    add_inductor_options("spyre", sys.modules[__name__])


install_config_module(sys.modules[__name__])
