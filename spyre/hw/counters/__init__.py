"""Counts of work and traffic: of executes, of scratchpads, of launches."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
