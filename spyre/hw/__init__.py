"""The simulated card: formats, memory, core plans and compiled kernels."""
