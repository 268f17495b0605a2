"""Where KV lies: pool, page tables, prefix cache, and the tensor they name."""
