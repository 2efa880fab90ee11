"""Faults from outside: damaged files, full disks, closed streams, signals, kills, lack of memory.

``python -m qa.faults`` injects many, `tests/qa/faults/test_faults.py` a few of every kind.
"""
