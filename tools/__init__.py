"""Programs for working on the project; nothing here is installed."""
