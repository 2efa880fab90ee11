"""The suite of benchmarks."""
