"""Prometheus metrics: finished turns are counted; current state is polled on each scrape."""
