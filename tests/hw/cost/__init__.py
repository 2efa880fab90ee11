"""The cost models."""
