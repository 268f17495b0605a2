"""All that owns KV memory: pool, page tables, prefix cache, eviction, tiers."""
