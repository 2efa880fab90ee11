"""One bundle under construction: from ir.Operations to device operations to a planned kernel."""
