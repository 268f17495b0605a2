"""Tiers for KV off the device: host memory, then disk. Blocks by their chain keys."""
