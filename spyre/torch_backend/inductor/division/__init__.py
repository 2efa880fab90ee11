"""Work division: how the cores share an operation's iteration space (hardware reference §4.1).

`divide_op` runs the passes. All functions are pure, so several threads may use them.
"""
