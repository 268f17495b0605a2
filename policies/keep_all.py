"""Policies: keep_all."""
