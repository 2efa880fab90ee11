"""Observers of eager and compiled code: traces, profiles, counters, debug output."""
