"""Mutants of real programs: does anything that goes wrong get noticed?

`python -m qa.sanitize_mutants --count 1000` changes one thing in a real case (address, stride,
gap, extent, symbol order, scale, core slice), runs it sanitized, and sorts the mutants: refused,
found, other output, or silent. Silent ones are looked at once more, byte by byte.
"""
