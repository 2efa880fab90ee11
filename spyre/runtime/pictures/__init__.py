"""Pictures of a program, drawn from its own addresses: layouts, cores, tiles, executes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
