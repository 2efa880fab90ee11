"""What the addresses of a program say without running it: tiles, steps, coverage.

`operands` traces every operand of every execute to the memory its address is computed from,
`tiles` puts executes that do the same in a loop (kept or unrolled) side by side, `causes` judges
their addresses by the layouts of the arguments.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
