"""Decodes frames and bodies to requests, encodes log entries as events. No I/O."""
