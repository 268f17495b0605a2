"""Conversations and their turns, between the wire, the store and the engine."""
