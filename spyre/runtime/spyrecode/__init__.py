"""SpyreCode directories: what a compiled kernel is on disk, and how it gets there and back."""
