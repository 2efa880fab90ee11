"""Tiled launches: a kernel compiled for a tile, run over larger tensors."""
