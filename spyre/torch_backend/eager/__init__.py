"""Eager operations: aten kernels that run on the simulated cores."""
