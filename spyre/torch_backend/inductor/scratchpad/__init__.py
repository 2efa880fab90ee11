"""LX scratchpad planning: which intermediate results of a kernel stay in the cores' LX, and where.

The way: specs → operations and their accesses (`operations`, `core_view`), what may lie in LX and
why not (`eligibility`, `in_place`), how long it must (`liveness`), where (`greedy`, `fit`,
`optimal`), all together (`plan`), what came of it (`report`). Everything here is a pure function
over frozen data, so several threads may plan at once. Nothing imports torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
