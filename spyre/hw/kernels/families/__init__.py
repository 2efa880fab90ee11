"""Kernels, one module per family of operations."""
