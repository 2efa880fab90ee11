"""SDSC files: bytes ↔ structs ↔ operation, and every rule on them."""
