"""The card's memory: one reservation, what of it is allocated, and what of the rest is not zero."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
