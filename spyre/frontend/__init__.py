"""torch-spyre, IBM's frontend for PyTorch, unmodified on the simulator: `docs/frontend.md`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
