"""What all of the backend stands on: Inductor's private parts, settings, layouts, the observer."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
