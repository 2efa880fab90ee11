"""Compiled kernels: plain numba functions over a plan table and one memory reservation.

They know nothing of JSON, MLIR or torch. Each family is one file; `registry` finds their entries.
"""
