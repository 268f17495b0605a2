"""Policies: protocol."""
