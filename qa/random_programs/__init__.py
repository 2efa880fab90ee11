"""Random PyTorch programs, run on the card eagerly and compiled, and compared with the CPU.

`python -m qa.random_programs --seeds N`; see :mod:`.__main__` for the options.
"""
