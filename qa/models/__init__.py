"""Models people use, small and with random weights, on the device and on the CPU."""
