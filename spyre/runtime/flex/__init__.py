"""The flex layer: streams, scheduler, job plans, cards."""
