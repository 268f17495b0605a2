"""How many bytes models take, from their shape alone. Pure; no model is loaded."""
