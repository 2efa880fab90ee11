"""What changes a graph's ir.Operations before they are scheduled; `order` says when what runs."""
