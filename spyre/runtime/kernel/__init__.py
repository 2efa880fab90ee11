"""A compiled bundle on a device: launches, linking, ways to run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
