"""Compiled kernels: plain numba functions over a plan table and one memory reservation.

They do not depend on JSON, MLIR or torch. `families` has a module per family of operations; the
other modules are their common parts, the driver that calls them, and the pool of threads. The plan
table (:mod:`spyre.hw.plan_table`) names the entry of each, so that numba is imported only by a run.
"""
