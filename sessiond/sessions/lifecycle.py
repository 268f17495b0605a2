"""Which transitions a session allows: a table."""
