"""The simulated card: memory, threads, copies, and the driver that runs linked programs."""
