"""Explains wrong results: checks of a program's addresses without running it.

`address_checks` compares tiles and steps with the layouts of the arguments and finds outputs that
are not written completely, `dataflow` checks intermediates between executes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
