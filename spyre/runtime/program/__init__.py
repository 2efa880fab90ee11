"""A bundle made ready to run: launch spec, symbols, compiled form, plans on disk."""
