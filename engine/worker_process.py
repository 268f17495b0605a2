"""The engine's process: the loop behind a local socket."""
