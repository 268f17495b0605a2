"""Policies: views."""
