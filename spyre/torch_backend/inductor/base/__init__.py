"""What all of the backend stands on: Inductor's private parts, settings, layouts, the observer."""
