"""Kernel operations, the bundles made of them, and the kernels that generated code calls."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
