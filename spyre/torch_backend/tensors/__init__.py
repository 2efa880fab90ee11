"""Tensors and storages on a card: memory, layouts, copies."""
