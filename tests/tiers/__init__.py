"""Tiers alone, and engines with tiers."""
