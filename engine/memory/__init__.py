"""KV memory: block pool, page tables, prefix cache, and the KV tensor."""
