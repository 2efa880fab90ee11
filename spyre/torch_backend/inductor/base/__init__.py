"""Foundations of the backend: Inductor's private symbols, settings, layouts, notes."""
