"""Passes on a graph's ir.Operations before scheduling: layouts and restickifies."""
