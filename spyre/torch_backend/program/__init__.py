"""Device programs: a few operations over views of tensors, written as an SDSC bundle."""
