"""Cards as PyTorch sees them: selection, memory, streams, random numbers, dtypes, errors."""
