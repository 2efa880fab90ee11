"""The card's memory: an address reservation, its allocations, and uncleared free ranges."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
