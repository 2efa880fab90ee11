"""A compiled bundle on a device: launches, linking, ways to run."""
