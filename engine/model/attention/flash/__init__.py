"""The `flash` backend: flash-attn over the pool's own pages, in the version that is installed."""
