"""Mutants of real programs, to test that the sanitizer notices every wrong access.

`python -m qa.sanitize_mutants --count 1000` changes one thing in a real case (address, stride,
gap, extent, symbol order, scale, core slice), runs it sanitized, and sorts the mutants: refused,
found, other output, or silent. Silent ones are checked again byte by byte.
"""
