"""Device programs: a few operations over views of tensors, written as an SDSC bundle."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
