"""PyTorch device "spyre": registered when torch is imported, everything else on first use.

`autoload` is the entry point that ``import torch`` calls; it imports neither numba nor Inductor.
"""

from __future__ import annotations

from spyre.torch_backend.autoload import autoload

# Torch calls the entry point at the end of its own import. Where a module of this package is what
# imports torch first, that has to happen here, before any of them is half loaded.
import torch  # noqa: F401  # isort: skip

__all__ = ["autoload"]
