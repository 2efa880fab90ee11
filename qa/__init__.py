"""Programs that look for defects: run by hand or in part by CI, each with a command line."""
