"""From specs to bundles, and the kernels that generated code calls."""
