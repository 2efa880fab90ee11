"""Coarse tiling: named dims, hints, and loops around groups of ir.Operation."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
