"""Frames and bodies to requests, facts to events and resources. No I/O, no clock."""
