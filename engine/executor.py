"""Applies plans to memory: the only mutator. Loop thread only."""
