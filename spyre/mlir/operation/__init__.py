"""What one SDSC means: an operation, its operands, their place in memory."""
