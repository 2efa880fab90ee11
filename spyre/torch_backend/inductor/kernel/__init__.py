"""One bundle under construction: ir.Operations to device operations to specs, divided and
placed.
"""
