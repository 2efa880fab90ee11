"""Running a bundle once, start to end: the session and its result."""
