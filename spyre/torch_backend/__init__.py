"""PyTorch device "spyre": registered when torch is imported, everything else on first use.

`autoload` is the entry point that ``import torch`` calls; it imports neither numba nor Inductor.
"""

from __future__ import annotations

from spyre.torch_backend.autoload import autoload

# Torch calls the entry point at the end of its import. If a module of this package is the first to
# import torch, the import has to happen here, before any module of the package is half loaded.
import torch  # noqa: F401  # isort: skip

__all__ = ["autoload"]
