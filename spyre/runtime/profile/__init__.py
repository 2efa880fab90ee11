"""Profiles: what a card would have done when, and why it took that long.

:mod:`.activity` is what is profiled (a recording, or a run's result), :mod:`.make` models it,
:mod:`.profile_data` is the result; the other modules show it, and :mod:`.profile` is what people
call. Nothing here runs unless a profile is asked for.
"""
