"""The lowered form of bundle.mlir: parameters, loops of executes, symbol values, schedules."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
