"""Automatic tiling: the ranges of a graph to run tile by tile, and the number of tiles of each.

Candidates are compiled for trial by the code that compiles the graph; the modelled time decides.
"""
