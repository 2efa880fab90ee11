"""The report: one HTML page with everything about a profile, readable without a network."""
