"""Which block holds which hashed prefix. Loop thread only."""
