"""Profiles: what a card would have done when, and why it took that long.

:mod:`.activity` is what is profiled (a recording, or a run's result), :mod:`.make` models it,
:mod:`.profile` is the result; the other modules show it. Nothing here runs unless a profile is
asked for.
"""
