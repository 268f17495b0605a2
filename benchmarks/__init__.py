"""Benchmarks: scripts that print. See LOG.md for what was measured and when."""
