"""KTIR on the engine: a function traced for its launch values becomes a program to be linked."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
