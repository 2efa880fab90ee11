"""Kernel operations, the bundles made of them, and the kernels that generated code calls."""
