"""Faults from outside: damaged files, full disks, closed streams, signals, kills, lack of memory.

``python -m tests.faults`` injects many; `tests/faults/test_faults.py` a few of every kind.
"""
