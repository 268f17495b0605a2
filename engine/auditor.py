"""Checks the memory's invariants; reports, never repairs."""
