"""Attention over page tables: one Protocol, several backends."""
