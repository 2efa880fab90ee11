"""Runs directories of cases (real bundles with values) in one process.

Use: `python -m qa.conformance DIR…`.
"""
