"""Tiled launches: a kernel compiled for a tile, run over larger tensors.

`kernel_dims` finds the dims that a kernel's arguments share, `tile_plan` computes the list of
tiles, `execute` gives operations the larger tensors' pitches, orders and runs the kernel on the
tiles, and copies of partial tiles.
"""
