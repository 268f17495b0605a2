"""Policies: laws."""
