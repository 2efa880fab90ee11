"""Mutants of real tiled programs: is the cause named first?

`python -m qa.cause_mutants` changes one thing in a real program that loops over tiles (a start,
a step, a gap, the order of executes or operands), runs it as `spyre-run` does, and of those whose
outputs are wrong says how often the first finding names what was changed.
"""
