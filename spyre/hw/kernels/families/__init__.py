"""One module per family of operations, with an entry for each kernel."""
