"""Frames to requests and facts to events. No I/O."""
