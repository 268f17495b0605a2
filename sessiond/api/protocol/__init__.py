"""Decodes frames and bodies to requests, encodes facts as events and resources. No I/O."""
