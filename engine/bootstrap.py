"""Builds an engine: loads the model, measures, sizes the pool."""
