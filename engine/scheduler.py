"""Decides what the next step computes. Pure."""
