"""Foundations of the backend: Inductor's private symbols, settings, layouts, notes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
