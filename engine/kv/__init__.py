"""KV memory: pool, page tables, prefix cache, eviction, tiers."""
