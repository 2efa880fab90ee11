"""Memory planning of compiled kernels: which intermediate results are placed in LX, and where.

`plan_scratchpad` places buffers in LX, `pool_offsets` the remaining ones in the pool in HBM, and
`with_offsets` writes the offsets into the kernel. All functions are pure; nothing imports torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
