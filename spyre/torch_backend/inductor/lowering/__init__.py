"""From aten operations to ir.Operations of the card, one per device operation."""
