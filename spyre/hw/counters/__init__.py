"""What programs move and compute: counts of executes, of scratchpads, of launches."""
