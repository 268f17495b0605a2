"""How many blocks the pool gets, and why. Pure."""
