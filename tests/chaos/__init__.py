"""Faults at random, from a seed, while conversations go on: `python -m tests.chaos --help`."""
