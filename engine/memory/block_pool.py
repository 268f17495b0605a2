"""Free list of KV blocks. Loop thread only."""
