"""Settings of :mod:`.config` among the options of ``torch.compile``, as ``spyre.name``."""

from __future__ import annotations

from spyre.torch_backend.compat import add_inductor_options
from spyre.torch_backend.inductor import config


def install() -> None:
    """Add them to Inductor's config; a second time changes nothing."""
    add_inductor_options("spyre", config)
