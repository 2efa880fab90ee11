"""Graphs with sizes that only a launch knows."""
