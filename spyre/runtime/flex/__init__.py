"""The flex layer: jobs, control blocks, streams, events and the scheduler under them."""
