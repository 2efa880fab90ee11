"""Memory planning of compiled kernels: which intermediate results are placed in LX, and where.

`plan_scratchpad` places buffers in LX, `pool_offsets` the remaining ones in the pool in HBM, and
`with_offsets` writes the offsets into the kernel. All functions are pure; nothing imports torch.
"""
