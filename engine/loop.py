"""The engine's loop: commands in, steps, events out. Owns the loop thread."""
