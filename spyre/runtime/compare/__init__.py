"""Comparison of outputs with expected ones, and of executes with the reference implementation."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
