"""What a kernel would cost on a card: pure functions of counts and a machine.

:mod:`.operation_counts` is what the models take, :mod:`.kernel_time` is the entry, :mod:`.machine`
holds the constants. Plain Python and numpy; everything is a value and may be used from any thread.
"""
