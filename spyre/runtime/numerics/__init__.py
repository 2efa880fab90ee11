"""One program in two number modes: what differs, and whether rounding explains it."""
