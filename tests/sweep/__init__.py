"""Design-space runs."""
