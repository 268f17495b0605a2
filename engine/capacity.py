"""How many blocks a turn can need. Pure."""
