"""The engine's loop: admission, scheduling, pressure, speculation."""
