"""The engine: one block pool, one loop thread, one model. See docs/architecture.md."""
