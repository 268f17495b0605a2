"""Benchmarks: they start servers, speak to them through the socket and print ratios."""
