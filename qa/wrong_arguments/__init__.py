"""Operators of the PyTorch device with wrong arguments, compared with the errors of the CPU.

`python -m qa.wrong_arguments --count N`; see :mod:`.__main__` for the options.
"""
