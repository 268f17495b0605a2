"""EngineClient over a thread of this process: tests and library use."""
