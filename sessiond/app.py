"""Wires settings into an application: the only wiring."""
