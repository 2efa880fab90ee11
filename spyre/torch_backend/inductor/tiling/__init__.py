"""Coarse tiling: named dims, hints, and loops around groups of ir.Operation."""
