"""Whole servers with the real model, spoken to by real clients."""
