"""bundle.mlir as text and syntax tree: parsed, checked for structure, printed."""
