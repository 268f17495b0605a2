"""Policies: lru."""
