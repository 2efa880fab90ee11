"""Case directories: kernels with buffers, values and expected outputs, recorded and replayed."""
