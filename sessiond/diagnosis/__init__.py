"""Explains memory use: what was found, what it means, what to do."""
