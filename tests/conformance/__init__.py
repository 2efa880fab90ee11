"""Runs directories of cases (real bundles with values) in one process.

Use: `python -m tests.conformance DIR…`.
"""
