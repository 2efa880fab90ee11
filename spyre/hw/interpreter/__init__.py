"""Interpretation of kernels by Python and numpy: slow, without compilation, with the same bits.

Small programs are interpreted while their kernels are compiled.
"""
