"""The KV tensor that blocks name. Loop thread only."""
