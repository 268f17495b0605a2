"""Load on a running server: people who talk to it, crowds of them, and what they met."""
