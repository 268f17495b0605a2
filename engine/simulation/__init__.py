"""Traces replayed through the real memory without a model: which policy keeps what is needed."""
