"""Mutants of real tiled programs, which measure how often the first finding is the cause.

`python -m qa.cause_mutants` changes one thing in a real program that loops over tiles (a start,
a step, a gap, the order of executes or operands), runs it as `spyre-run` does, and prints for how
many of those with wrong outputs the first finding names the changed execute and tensor.
"""
