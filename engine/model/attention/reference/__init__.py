"""The `torch` backend: the reference, and the fallback everywhere."""
