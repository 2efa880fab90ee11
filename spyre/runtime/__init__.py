"""Submission of work to the card: arguments, transfers, launches."""
