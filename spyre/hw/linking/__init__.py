"""Linking: a program, its operations and a binding become tables and dispatches."""
