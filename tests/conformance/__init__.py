"""Runs directories of cases (real bundles with values) in one process: `python -m tests.conformance`."""
