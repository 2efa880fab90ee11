"""How work reaches the card: arguments, transfers, launches."""
