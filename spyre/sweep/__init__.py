"""Design-space runs: what programs would cost on other machines, compiled in other ways.

``python -m spyre.sweep`` is the entry, :mod:`.definition` says what is run, :mod:`.point` measures,
:mod:`.runners` spread points over processes, :mod:`.journal` and :mod:`.results` keep them.
"""
