"""Device memory as the runtime hands it out: allocations, handles, statistics."""
