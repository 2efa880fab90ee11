"""Ctrl-C at random moments of work on a card, by line of Python and by time."""
