"""The report: one HTML page with everything about a profile, readable without a network."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
