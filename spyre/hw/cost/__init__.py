"""Models of a kernel's time on a card: pure functions of counts and a machine.

:mod:`.models` is the entry and takes :class:`~spyre.hw.counters.counts.OperationCounts`,
:mod:`.machine` holds the constants, :mod:`.timeline` puts launches and copies side by side. Plain
Python and numpy; everything is a value and may be used from any thread.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
