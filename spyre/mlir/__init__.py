"""Read, check, lower and write bundles: bundle.mlir and SDSC JSON."""
