"""Design-space sweeps: the modelled time of programs on other machines and compiled in other ways.

``python -m spyre.sweep`` is the entry. :mod:`.definition` reads the sweep, :mod:`.run` spreads its
points over processes and keeps a journal, :mod:`.point` measures a point, and :mod:`.results`
writes the table and the picture.
"""
