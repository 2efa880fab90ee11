"""Coarse tiling: names of dims, hints, loops around groups of ir.Operation, loop scheduler nodes.

`dim_names` and `hints` are for users and load nothing of Inductor.
"""
