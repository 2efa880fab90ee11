"""Device memory: the allocator, its modes, and who owns what it hands out."""
