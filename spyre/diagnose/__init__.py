"""Explains wrong results, by the addresses of a program or by running it beside another one.

`address_checks` compares tiles and steps with the layouts of the arguments, finds outputs that are
not written completely, and checks intermediates between executes. `first_divergence` checks a run,
execute by execute, against the values of its function: `tiles` reads the operands of executes and
finds them in these values, `mismatch` shows the first deviation. `number_modes` runs a program in
two number modes and explains their differences.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
