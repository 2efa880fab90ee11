"""What Inductor and Dynamo call: registration, scheduling, passes, the device's interface."""
