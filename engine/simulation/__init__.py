"""Replays traces through the real memory without a model, to compare placement policies."""
