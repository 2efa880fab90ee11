"""Compiled kernels: plain numba functions over a plan table and one memory reservation.

They know nothing of JSON, MLIR or torch. `families` has a module per family of operations, beside
it stand what they are made of, the driver that calls them, and the pool of threads. The plan table
(:mod:`spyre.hw.table.plan`) names the entry of each, so that nothing imports numba before it runs.
"""
