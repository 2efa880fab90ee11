"""When what happens on a card: tasks with durations, which wait for each other and for resources.

:mod:`.task` is the data, :mod:`.policies` says what may happen at the same time, :mod:`.events`
gives every task its begin and end. Pure functions of values; any thread.
"""
