"""PyTorch device "spyre": registered when torch is imported, everything else on first use.

`autoload` is the entry point that ``import torch`` calls; it imports neither numba nor Inductor.
"""

from __future__ import annotations

from spyre.torch_backend.autoload import autoload

__all__ = ["autoload"]
