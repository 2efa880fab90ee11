"""The card's memory: one reservation, what of it is allocated, and what of the rest is not zero."""
