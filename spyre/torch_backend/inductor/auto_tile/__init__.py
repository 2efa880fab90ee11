"""Automatic tiling: which stretches of a graph to run tile by tile, and in how many tiles.

Candidates are compiled for trial, on copies of the operations, by the code that compiles the
graph itself; the modelled time of what comes out decides.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
