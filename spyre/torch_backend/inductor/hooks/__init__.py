"""Entry points for Inductor and Dynamo: registration, scheduling, passes, device interface."""
