"""What the card does: formats, memory, core plans and compiled kernels."""
