"""Policies: plan."""
