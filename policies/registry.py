"""Policies: registry."""
