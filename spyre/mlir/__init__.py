"""What a bundle says: bundle.mlir and SDSC JSON, read, checked, lowered and written."""
