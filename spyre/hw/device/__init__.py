"""The simulated card: memory, threads, copies, and the driver that runs linked programs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
