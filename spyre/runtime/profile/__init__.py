"""Profiles: the modelled time of a recording or of the result of a run.

:mod:`.profile` makes it; the other modules render it as tables, JSON, an HTML page, a roofline and
a trace. Nothing runs here unless a profile is requested.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
