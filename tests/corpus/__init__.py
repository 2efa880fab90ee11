"""Bad bundles and command lines, each with the exact text `spyre-run` answers it with."""
