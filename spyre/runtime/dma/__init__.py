"""Copies between host and device: their descriptors, and the engine that executes them."""
