"""Device memory: the allocator, its modes, and the owners of allocations."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
