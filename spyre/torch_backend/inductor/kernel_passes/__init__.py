"""Passes over the operations of a kernel: unread results, padding, constants; work division.

Each takes the `KernelOperations` it finds and returns them changed. Their order: `passes.names`.
"""
