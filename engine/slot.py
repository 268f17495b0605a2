"""A context and its running turn. Loop thread only."""
